//! The purge of a destination's backlog: how many deliveries match, and the typed confirmation that cancels them.

use askama::Template;
use axum::extract::{Path, RawQuery};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    client::{ApiPath, append},
    delivery_filter::instant,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Section},
    names::NamedDestination,
    units::Count,
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

impl Filter {
    fn read(fields: &Fields) -> Self {
        let given = fields.all("state");
        Self {
            states: STATES.into_iter().filter(|state| given.contains(state)).collect(),
            event_type: fields.text("event_type").to_owned(),
            before: fields.text("before").to_owned(),
        }
    }

    fn body(&self) -> Value {
        let given = |value: &str| if value.is_empty() { Value::Null } else { json!(value) };
        json!({
            "states": if self.states.is_empty() { Value::Null } else { json!(self.states) },
            "event_type": given(&self.event_type),
            "before": given(&instant(&self.before)),
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

#[derive(Debug, Deserialize)]
struct Counted {
    total: Count,
}

#[derive(Debug, Deserialize)]
struct Purged {
    cancelled: Count,
}

#[derive(Template)]
#[template(path = "purge.html")]
struct PurgePage {
    frame: Frame,
    destination: NamedDestination,
    filter: Filter,
    total: Count,
}

impl PurgePage {
    fn confirmation(&self) -> String {
        confirmation(self.total)
    }

    fn takes(&self, state: &str) -> bool {
        self.filter.states.is_empty() || self.filter.states.contains(&state)
    }
}

fn confirmation(total: Count) -> String {
    format!("purge {}", total.0)
}

pub(crate) async fn show(visit: Visit, Path(id): Path<String>, RawQuery(query): RawQuery) -> Answered {
    let filter = Filter::read(&Fields::parse(query.unwrap_or_default().as_bytes()));
    let (destination, body) = (ApiPath::of(["destinations", &id]), filter.body());
    let counting = ApiPath::of(["destinations", &id, "purge"]);
    let (me, destination, counted) =
        tokio::try_join!(visit.me(), visit.api.get(&destination), visit.api.dry_run::<Counted>(counting, &body))?;
    let frame = visit.frame(me, Section::Overview, "Purge the backlog");
    visit.page(&PurgePage { frame, destination, filter, total: counted.total })
}

pub(crate) async fn purge(visit: Visit, Path(id): Path<String>, fields: Fields) -> Answered {
    let filter = Filter::read(&fields);
    let expected = fields.text("total").parse().map_or_else(|_| String::new(), |total| confirmation(Count(total)));
    if expected.is_empty() || fields.text("confirm") != expected {
        let unsure = "Nothing was cancelled: the confirmation was not typed as shown.";
        return visit.redirect(&filter.link(&id), Some(Flash::error(unsure)));
    }
    let answer = visit.api.post(&ApiPath::of(["destinations", &id, "purge"]), &filter.body()).await;
    visit.after(&format!("/destinations/{id}"), answer, |purged: Purged| {
        let word = if purged.cancelled.0 == 1 { "delivery is" } else { "deliveries are" };
        format!("{} waiting {word} cancelled.", purged.cancelled)
    })
}
