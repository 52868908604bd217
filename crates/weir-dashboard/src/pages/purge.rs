//! The purge of a destination's backlog: how many deliveries match, and the typed confirmation that cancels them.

use askama::Template;
use axum::extract::RawQuery;
use serde_json::{Value, json};
use weir_api_types::{self as types, Destination};
use weir_core::Timestamp;

use crate::{
    client::{ApiPath, append},
    delivery_filter::instant,
    fields::Fields,
    flash::Flash,
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

    fn link(&self, id: &str) -> String {
        let mut link = format!("/destinations/{id}/purge");
        for state in &self.states {
            append(&mut link, "state", state);
        }
        append(&mut link, "event_type", &self.event_type);
        append(&mut link, "before", &self.before);
        link
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

/// Whether the reader has confirmed what was counted, or why not.
pub(super) fn confirmed(fields: &Fields, action: &str) -> Result<(), &'static str> {
    let total = fields.text("total").parse().map_or(Count(0), Count);
    if total.0 == 0 || fields.text("counted_until").is_empty() {
        return Err("nothing was counted.");
    }
    let is_typed = fields.text("confirm") == confirmation(action, total);
    if is_typed { Ok(()) } else { Err("the confirmation was not typed as shown.") }
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId, RawQuery(query): RawQuery) -> Answered {
    let filter = Filter::read(&Fields::parse(query.unwrap_or_default().as_bytes()));
    let counted_until = counted_until(&visit, &filter.before);
    let (destination, body) = (ApiPath::of(["destinations", &id]), filter.body(&counted_until));
    let counting = ApiPath::of(["destinations", &id, "purge"]);
    let (me, destination, counted) =
        tokio::try_join!(visit.me(), visit.api.get(&destination), visit.api.dry_run::<types::Count>(counting, &body))?;
    let frame = visit.frame(me, Section::Overview, "Purge the backlog");
    visit.page(&PurgePage { frame, destination, filter, counted_until, total: Count(counted.total) })
}

pub(crate) async fn purge(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let filter = Filter::read(&fields);
    let counted_until = fields.text("counted_until");
    if let Err(reason) = confirmed(&fields, "purge") {
        return visit.redirect(&filter.link(&id), Some(Flash::error(format!("Nothing was cancelled: {reason}"))));
    }
    let answer = visit.api.post(&ApiPath::of(["destinations", &id, "purge"]), &filter.body(counted_until)).await;
    visit.after(&format!("/destinations/{id}"), answer, |purged: types::Purged| {
        let word = if purged.cancelled == 1 { "delivery is" } else { "deliveries are" };
        format!("{} waiting {word} cancelled.", Count(purged.cancelled))
    })
}
