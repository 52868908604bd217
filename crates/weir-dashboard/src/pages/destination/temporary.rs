//! Limits for a while, and a hold with an end, of a destination or a limit group: begun by a small form, ended by a button.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use weir_api_types::{
    Destination, FieldError, HeldDestination, HeldLimitGroup, LimitGroup, OverriddenDestination, OverriddenLimitGroup,
    Override,
};

use crate::{
    client::{ApiPath, Call},
    durations::Millis,
    fields::Fields,
    path_id::PathId,
    refusal::Refusal,
    units::Units as _,
    views::OverrideText as _,
    visit::{Answered, Visit},
};

/// Begins an override, or ends it.
pub(crate) async fn override_limits(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let answer = begin_or_end(&visit, ["destinations", &id, "override"], &fields, limits(&fields)).await;
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
    body: Result<Value, Refusal>,
) -> Result<Option<T>, Refusal> {
    let path = ApiPath::of(path);
    if fields.has("end") {
        visit.api.send(&Call::new(Method::DELETE, &path)).await?;
        return Ok(None);
    }
    let call = Call::new(Method::POST, &path).json(&body?)?;
    visit.api.send(&call).await.map_err(in_words)?.read().map(Some)
}

/// What the API refused, in the words of the form.
fn in_words(refusal: Refusal) -> Refusal {
    let named = |error: FieldError| {
        let label = match error.pointer.split('/').nth(1) {
            Some("rate_limits") => "At most",
            Some("max_in_flight") => "In flight",
            Some("for_s" | "until") => "For",
            Some("reason") => "Why",
            _ => return error,
        };
        FieldError { pointer: String::new(), detail: format!("{label}: {}", error.detail) }
    };
    Refusal { errors: refusal.errors.into_iter().map(named).collect(), ..refusal }
}

/// Which limits, how long they last, and why.
fn limits(fields: &Fields) -> Result<Value, Refusal> {
    let mut body = lasting(fields)?;
    if fields.text("limit").is_empty() && fields.text("in_flight").is_empty() {
        let missing = "An override needs a limit, a number in flight, or both. Hold sends nothing until the end.";
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "Not saved", missing));
    }
    if !fields.text("limit").is_empty() {
        body["rate_limits"] = json!([{"limit": number(fields.text("limit")), "period": fields.text("period")}]);
    }
    if !fields.text("in_flight").is_empty() {
        body["max_in_flight"] = number(fields.text("in_flight"));
    }
    Ok(body)
}

/// How long it lasts, and why.
fn lasting(fields: &Fields) -> Result<Value, Refusal> {
    let lasts = Millis::parse(fields.text("for")).map_err(|wrong| {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "Not saved", format!("How long it lasts {wrong}."))
    })?;
    Ok(json!({"for_s": lasts.0 / 1_000, "reason": fields.text("reason")}))
}

/// What is no number goes to the API as it is, which says so.
pub(super) fn number(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| text.into(), Value::from)
}
