//! Jump to what an id names, to the destination with this name, or to the event with this idempotency key. Any other text
//! is searched for. While a reader types, names are suggested.

use askama::Template;
use axum::extract::Query;
use http::StatusCode;
use serde::Deserialize;
use weir_api_types::{BriefDestination, Event, List};

use crate::{
    client::{ApiPath, append},
    names::{exact_id, label, suggestions},
    path_id::is_id,
    refusal::Refusal,
    visit::{Answered, Visit},
};

#[derive(Deserialize)]
pub(crate) struct Jump {
    #[serde(default)]
    id: String,
}

/// The suggestions: the options of the list below the field.
#[derive(Template)]
#[template(path = "jump_names.html")]
struct JumpNames {
    found: Vec<BriefDestination>,
}

pub(crate) async fn jump(visit: Visit, Query(jump): Query<Jump>) -> Answered {
    let given = jump.id.trim();
    let target = target(given);
    if given.is_empty() || !target.starts_with("/?") {
        return visit.redirect(&target, None);
    }
    if let Some(id) = exact_id(&visit, given).await? {
        return visit.redirect(&format!("/destinations/{id}"), None);
    }
    let of_event = event_with_key(&visit, given).await?;
    visit.redirect(&of_event.unwrap_or(target), None)
}

/// The page of the event with this idempotency key, or the list of several: each tenant may have one.
async fn event_with_key(visit: &Visit, key: &str) -> Result<Option<String>, Refusal> {
    let path = ApiPath::of(["events"]).with("idempotency_key", key).with("limit", "2");
    let found: List<Event> = match visit.api.get(&path).await {
        // The text cannot be a key, or there are too many tenants to look it up.
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => return Ok(None),
        found => found?,
    };
    Ok(match found.data.as_slice() {
        [] => None,
        [event] => Some(format!("/events/{}", event.id)),
        _ => {
            let mut list = String::from("/events");
            append(&mut list, "idempotency_key", key);
            Some(list)
        }
    })
}

/// Names for what has been typed.
pub(crate) async fn names(visit: Visit, Query(jump): Query<Jump>) -> Answered {
    let given = jump.id.trim();
    let found = if given.is_empty() || is_id(given) { Vec::new() } else { suggestions(&visit, given).await? };
    visit.fragment(&JumpNames { found })
}

fn target(id: &str) -> String {
    let pages = [("dst_", "/destinations/"), ("dlv_", "/deliveries/"), ("evt_", "/events/"), ("rpl_", "/replays/")];
    match pages.into_iter().find(|(prefix, _)| is_id(id) && id.starts_with(prefix)) {
        Some((_, page)) => format!("{page}{id}"),
        None => {
            let mut overview = String::from("/");
            append(&mut overview, "q", id);
            overview
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_to_its_page_and_a_text_to_a_search() {
        assert_eq!(target("dst_01h2xcejqtf2nbrexx3vqjhp41"), "/destinations/dst_01h2xcejqtf2nbrexx3vqjhp41");
        assert_eq!(target("dlv_1"), "/deliveries/dlv_1");
        assert_eq!((target("acme & co"), target("dst_/../x")), ("/?q=acme%20%26%20co".into(), "/?q=dst_/../x".into()));
        assert_eq!(target(""), "/");
    }
}
