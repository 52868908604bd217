//! Limits for a while, and a hold with an end: begun by a small form, ended by a button.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use weir_api_types::{Destination, HeldDestination, OverriddenDestination};

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
    let body = || {
        let mut body = lasting(&fields)?;
        if !fields.text("limit").is_empty() {
            body["rate_limits"] = json!([{"limit": number(fields.text("limit")), "period": fields.text("period")}]);
        }
        if !fields.text("in_flight").is_empty() {
            body["max_in_flight"] = number(fields.text("in_flight"));
        }
        Ok(body)
    };
    let answer = begin_or_end(&visit, &id, "override", &fields, body).await;
    visit.after(&format!("/destinations/{id}"), answer, |answer| match answer {
        Some(OverriddenDestination { destination: Destination { overridden: Some(now), .. }, replaced }) => {
            let instead = replaced.map(|before| format!(" It replaces {}.", before.limits())).unwrap_or_default();
            format!("{} until {} UTC.{instead}", now.limits(), now.until.time().plain())
        }
        _ => "The override is over. The limits of the settings are in effect.".to_owned(),
    })
}

/// Begins a hold, or ends it.
pub(crate) async fn hold(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let answer = begin_or_end(&visit, &id, "hold", &fields, || lasting(&fields)).await;
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
    id: &str,
    what: &str,
    fields: &Fields,
    body: impl FnOnce() -> Result<Value, Refusal>,
) -> Result<Option<T>, Refusal> {
    let path = ApiPath::of(["destinations", id, what]);
    if fields.has("end") {
        visit.api.send(&Call::new(Method::DELETE, &path)).await?;
        return Ok(None);
    }
    let call = Call::new(Method::POST, &path).json(&body()?)?;
    visit.api.send(&call).await?.read().map(Some)
}

/// How long it lasts, and why.
fn lasting(fields: &Fields) -> Result<Value, Refusal> {
    let lasts = Millis::parse(fields.text("for")).map_err(|wrong| {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "Not saved", format!("How long it lasts {wrong}."))
    })?;
    Ok(json!({"for_s": lasts.0 / 1_000, "reason": fields.text("reason")}))
}

/// What is no number goes to the API as it is, which says so.
fn number(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| text.into(), Value::from)
}
