//! Limits for a while, and a hold with an end, of a destination or a limit group: begun by a small form, ended by a button.

use http::Method;
use serde_json::{Value, json};
use weir_api_types::{
    Destination, HeldDestination, HeldLimitGroup, LimitGroup, OverriddenDestination, OverriddenLimitGroup, Override,
};

use super::now;
use crate::{
    client::{ApiPath, Call},
    durations::ApiUnit,
    faults::Refused,
    fields::Fields,
    pages::limit_groups,
    path_id::PathId,
    refusal::Refusal,
    units::Units as _,
    views::OverrideText as _,
    visit::{Answered, Visit},
};

/// The form that the API has refused. A button that ends something has no fields.
fn refused<T>(answer: &Result<T, Refusal>, fields: &Fields) -> Option<Refused> {
    Refused::by(answer, fields, field_at).filter(|_| !fields.has("end"))
}

/// The field that has the value at a JSON pointer, and its label.
fn field_at(pointer: &str) -> Option<(String, String)> {
    let (name, label) = match pointer.split('/').nth(1)? {
        "rate_limits" => ("limit", "At most"),
        "max_in_flight" => ("in_flight", "In flight"),
        "for_s" | "until" => ("for", "For"),
        "reason" => ("reason", "Why"),
        _ => return None,
    };
    Some((name.to_owned(), label.to_owned()))
}

/// Begins an override, or ends it.
pub(crate) async fn override_limits(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let answer = begin_or_end(&visit, ["destinations", &id, "override"], &fields, limits(&fields)).await;
    if let Some(form) = refused(&answer, &fields) {
        return now::refused_for_a_while(&visit, &id, form).await;
    }
    visit.after(&format!("/destinations/{id}"), answer, |answer| match answer {
        Some(OverriddenDestination { destination: Destination { overridden: Some(now), .. }, replaced }) => {
            overridden(&now, replaced)
        }
        _ => OVERRIDE_OVER.to_owned(),
    })
}

const OVERRIDE_OVER: &str = "The override is over. The limits of the settings are in effect.";

fn overridden(now: &Override, replaced: Option<Override>) -> String {
    let instead = replaced.map(|before| format!(" It replaces {}.", before.limits())).unwrap_or_default();
    format!("{} until {} UTC.{instead}", now.limits(), now.until.time().plain())
}

/// Begins an override of a limit group, or ends it.
pub(crate) async fn override_group(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let answer = begin_or_end(&visit, ["limit-groups", &id, "override"], &fields, limits(&fields)).await;
    if let Some(form) = refused(&answer, &fields) {
        return limit_groups::refused_for_a_while(&visit, &id, form).await;
    }
    visit.after(&format!("/limit-groups/{id}"), answer, |answer| match answer {
        Some(OverriddenLimitGroup { limit_group: LimitGroup { overridden: Some(now), .. }, replaced }) => {
            overridden(&now, replaced)
        }
        _ => OVERRIDE_OVER.to_owned(),
    })
}

/// Begins a hold of a limit group, or ends it.
pub(crate) async fn hold_group(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let answer = begin_or_end(&visit, ["limit-groups", &id, "hold"], &fields, lasting(&fields)).await;
    if let Some(form) = refused(&answer, &fields) {
        return limit_groups::refused_for_a_while(&visit, &id, form).await;
    }
    visit.after(&format!("/limit-groups/{id}"), answer, |answer| match answer {
        Some(HeldLimitGroup { limit_group: LimitGroup { hold: Some(now), .. }, replaced }) => {
            let instead = if replaced.is_some() { " It replaces the hold before." } else { "" };
            format!("Held until {} UTC. The deliveries of all members wait.{instead}", now.until.time().plain())
        }
        _ => "The hold is over. The members go on within the limits.".to_owned(),
    })
}

/// Begins a hold, or ends it.
pub(crate) async fn hold(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let answer = begin_or_end(&visit, ["destinations", &id, "hold"], &fields, lasting(&fields)).await;
    if let Some(form) = refused(&answer, &fields) {
        return now::refused_for_a_while(&visit, &id, form).await;
    }
    visit.after(&format!("/destinations/{id}"), answer, |answer| match answer {
        Some(HeldDestination { destination: Destination { hold: Some(now), .. }, replaced }) => {
            let instead = if replaced.is_some() { " It replaces the hold before." } else { "" };
            format!("Held until {} UTC. Its deliveries wait.{instead}", now.until.time().plain())
        }
        _ => "The hold is over. One send goes first, and more once it is answered.".to_owned(),
    })
}

/// `None`: it was ended.
async fn begin_or_end<T: serde::de::DeserializeOwned>(
    visit: &Visit,
    path: [&str; 3],
    fields: &Fields,
    body: Value,
) -> Result<Option<T>, Refusal> {
    let path = ApiPath::of(path);
    if fields.has("end") {
        visit.api.send(&Call::new(Method::DELETE, &path)).await?;
        return Ok(None);
    }
    let call = Call::new(Method::POST, &path).json(&body)?;
    visit.api.send(&call).await.map_err(in_words)?.read().map(Some)
}

/// What the API says of fields that the form does not have.
fn in_words(mut refusal: Refusal) -> Refusal {
    for error in &mut refusal.errors {
        match &*error.pointer {
            "/rate_limits" if error.detail.starts_with("give") => {
                "needs a limit, a number in flight, or both; “Hold” sends nothing until the end"
                    .clone_into(&mut error.detail);
            }
            "/for_s" if error.detail.starts_with("give") => {
                "must be a duration of a second to thirty days".clone_into(&mut error.detail);
            }
            _ => {}
        }
    }
    refusal
}

/// Which limits, how long they last, and why.
fn limits(fields: &Fields) -> Value {
    let mut body = lasting(fields);
    if !fields.text("limit").is_empty() {
        body["rate_limits"] = json!([{"limit": number(fields.text("limit")), "period": fields.text("period")}]);
    }
    if !fields.text("in_flight").is_empty() {
        body["max_in_flight"] = number(fields.text("in_flight"));
    }
    body
}

/// How long it lasts, and why. What is no duration goes to the API as it is, which refuses it with everything else.
fn lasting(fields: &Fields) -> Value {
    let for_s = match fields.text("for") {
        "" => Value::Null,
        typed => ApiUnit::Seconds.typed(typed).map_or_else(|_| json!(typed), |seconds| json!(seconds)),
    };
    json!({"for_s": for_s, "reason": fields.text("reason")})
}

/// What is no number goes to the API as it is, which says so.
pub(super) fn number(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| text.into(), Value::from)
}
