//! The purge of a destination's backlog: how many deliveries match, and the typed confirmation that cancels them.

use askama::Template;
use axum::extract::RawQuery;
use http::StatusCode;
use serde_json::{Value, json};
use weir_api_types::{self as types, Destination};
use weir_core::Timestamp;

use crate::{
    client::ApiPath,
    delivery_filter::instant,
    faults::Refused,
    fields::Fields,
    frame::{Frame, Section},
    path_id::PathId,
    units::Count,
    views::DestinationText as _,
    visit::{Answered, Visit},
};

const STATES: [&str; 2] = ["pending", "retrying"];

/// The deliveries to cancel.
#[derive(Debug, Clone, Default)]
struct Filter {
    states: Vec<&'static str>,
    event_type: String,
    before: String,
}

/// The instant that ends the selection of a purge or replay which is confirmed later: the end that the reader has
/// given, or else now. Events that arrive between the count and the confirmation are not part of it.
pub(super) fn counted_until(visit: &Visit, given: &str) -> String {
    let now = visit.site.clock.now();
    let given = instant(given);
    match given.parse::<Timestamp>() {
        Ok(at) if at > now => now.to_string(),
        // The API explains what is no time.
        _ if given.is_empty() => now.to_string(),
        _ => given,
    }
}

impl Filter {
    fn read(fields: &Fields) -> Self {
        let given = fields.all("state");
        Self {
            states: STATES.into_iter().filter(|state| given.contains(state)).collect(),
            event_type: fields.text("event_type").to_owned(),
            before: fields.text("before").to_owned(),
        }
    }

    fn body(&self, before: &str) -> Value {
        let given = |value: &str| if value.is_empty() { Value::Null } else { json!(value) };
        json!({
            "states": if self.states.is_empty() { Value::Null } else { json!(self.states) },
            "event_type": given(&self.event_type),
            "before": before,
        })
    }
}

#[derive(Template)]
#[template(path = "purge.html")]
struct PurgePage {
    frame: Frame,
    destination: Destination,
    filter: Filter,
    /// The events before this instant are counted.
    counted_until: String,
    total: Count,
    form: Refused,
}

impl PurgePage {
    fn confirmation(&self) -> String {
        confirmation("purge", self.total)
    }

    fn takes(&self, state: &str) -> bool {
        self.filter.states.is_empty() || self.filter.states.contains(&state)
    }
}

/// What the reader types to do an action to so many deliveries.
pub(super) fn confirmation(action: &str, total: Count) -> String {
    format!("{action} {}", total.0)
}

/// `None`: the reader has confirmed what was counted. Else the form again, with why not.
pub(super) fn unconfirmed(fields: &Fields, action: &str) -> Option<Refused> {
    let total = fields.text("total").parse().map_or(Count(0), Count);
    let wrong = if total.0 == 0 || fields.text("counted_until").is_empty() {
        "Nothing was counted."
    } else if fields.text("confirm") != confirmation(action, total) {
        "It was not typed as shown. The number may have changed since."
    } else {
        return None;
    };
    Some(Refused::in_field(fields.clone(), "confirm", "The confirmation", wrong.to_owned()))
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId, RawQuery(query): RawQuery) -> Answered {
    let filter = Filter::read(&Fields::parse(query.unwrap_or_default().as_bytes()));
    page(&visit, &id, StatusCode::OK, filter, Refused::default()).await
}

async fn page(visit: &Visit, id: &str, status: StatusCode, filter: Filter, form: Refused) -> Answered {
    let counted_until = counted_until(visit, &filter.before);
    let (destination, body) = (ApiPath::of(["destinations", id]), filter.body(&counted_until));
    let counting = ApiPath::of(["destinations", id, "purge"]);
    let (me, destination, counted) =
        tokio::try_join!(visit.me(), visit.api.get(&destination), visit.api.dry_run::<types::Count>(counting, &body))?;
    let frame = visit.frame(me, Section::Overview, "Purge the backlog");
    let total = Count(counted.total);
    visit.page_with(status, &PurgePage { frame, destination, filter, counted_until, total, form })
}

pub(crate) async fn purge(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let filter = Filter::read(&fields);
    let counted_until = fields.text("counted_until");
    if let Some(form) = unconfirmed(&fields, "purge") {
        return page(&visit, &id, StatusCode::UNPROCESSABLE_ENTITY, filter, form).await;
    }
    let answer = visit.api.post(&ApiPath::of(["destinations", &id, "purge"]), &filter.body(counted_until)).await;
    visit.after(&format!("/destinations/{id}"), answer, |purged: types::Purged| {
        let word = if purged.cancelled == 1 { "delivery is" } else { "deliveries are" };
        format!("{} waiting {word} cancelled.", Count(purged.cancelled))
    })
}
