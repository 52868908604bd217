//! Events: the list, and one event with its deliveries and its body.

use askama::Template;
use axum::extract::{Path, Query};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::deliveries::DeliveryRow;
use crate::{
    client::{ApiPath, append},
    delivery_filter::{Chip, instant},
    example::Example,
    frame::{Frame, Section},
    json_text::indented,
    names::Names,
    refusal::Refusal,
    units::At,
    views::List,
    visit::{Answered, Visit},
};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Filter {
    #[serde(rename = "type")]
    event_type: String,
    tenant: String,
    idempotency_key: String,
    from: String,
    to: String,
    order: String,
    cursor: String,
}

impl Filter {
    fn conditions(&self) -> [(&'static str, &'static str, &String); 5] {
        [
            ("type", "Type", &self.event_type),
            ("tenant", "Tenant", &self.tenant),
            ("idempotency_key", "Idempotency key", &self.idempotency_key),
            ("from", "From", &self.from),
            ("to", "Before", &self.to),
        ]
    }

    /// A link with this filter, without one of its conditions.
    fn link(&self, path: &str, without: &str, cursor: &str) -> String {
        let mut link = path.to_owned();
        for (name, _, value) in self.conditions().into_iter().filter(|(name, ..)| *name != without) {
            append(&mut link, name, value);
        }
        append(&mut link, "order", &self.order);
        append(&mut link, "cursor", cursor);
        link
    }
}

/// An event, with what its own page shows of it.
#[derive(Debug, Deserialize)]
pub(crate) struct EventView {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) event_type: String,
    pub(crate) tenant: String,
    pub(crate) created_at: At,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) deliver_at: Option<At>,
    pub(crate) expires_at: Option<At>,
    pub(crate) ordering_key: Option<String>,
    pub(crate) coalesce_key: Option<String>,
    data: Option<Box<RawValue>>,
    #[serde(default)]
    pub(crate) deliveries: Vec<DeliveryRow>,
}

impl EventView {
    pub(crate) async fn read(visit: &Visit, id: &str) -> Result<Self, Refusal> {
        visit.api.get(&ApiPath::of(["events", id])).await
    }

    /// The body that every destination receives, byte for byte (`weir_core::event::EventBody`).
    pub(crate) fn sent_body(&self) -> String {
        let data = self.data.as_deref().map_or("null", RawValue::get);
        let Self { id, event_type, created_at, .. } = self;
        format!(r#"{{"id":"{id}","type":"{event_type}","timestamp":"{}","data":{data}}}"#, created_at.0)
    }

    pub(crate) fn indented_body(&self) -> String {
        indented(&self.sent_body())
    }
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage {
    frame: Frame,
    filter: Filter,
    page: List<EventView>,
    example: Example,
}

impl EventsPage {
    fn path(&self) -> String {
        format!("{}/events", self.frame.base())
    }

    fn is_filtered(&self) -> bool {
        !self.filter.cursor.is_empty() || self.filter.conditions().iter().any(|(_, _, value)| !value.is_empty())
    }

    fn chips(&self) -> Vec<Chip> {
        let set = self.filter.conditions().into_iter().filter(|(_, _, value)| !value.is_empty());
        let chip = |(parameter, name, value): (&str, &'static str, &String)| Chip {
            name,
            value: value.clone(),
            without: self.filter.link(&self.path(), parameter, ""),
        };
        set.map(chip).collect()
    }

    fn first(&self) -> Option<String> {
        (!self.filter.cursor.is_empty()).then(|| self.filter.link(&self.path(), "", ""))
    }

    fn next(&self) -> Option<String> {
        Some(self.filter.link(&self.path(), "", self.page.next_cursor.as_deref()?))
    }
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    frame: Frame,
    event: EventView,
    names: Names,
}

pub(crate) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Answered {
    let path = ApiPath::of(["events"])
        .with("type", filter.event_type.trim())
        .with("tenant", filter.tenant.trim())
        .with("idempotency_key", filter.idempotency_key.trim())
        .with("from", &instant(&filter.from))
        .with("to", &instant(&filter.to))
        .with("order", &filter.order)
        .with("cursor", &filter.cursor);
    let (me, page) = tokio::try_join!(visit.me(), visit.api.get(&path))?;
    let example = Example::new(&visit, &me);
    let frame = visit.frame(me, Section::Events, "Events");
    visit.page(&EventsPage { frame, filter, page, example })
}

pub(crate) async fn show(visit: Visit, Path(id): Path<String>) -> Answered {
    let (me, event) = tokio::try_join!(visit.me(), EventView::read(&visit, &id))?;
    let names = Names::read(&visit, event.deliveries.iter().map(|row| &*row.destination_id)).await;
    let frame = visit.frame(me, Section::Events, event.event_type.clone());
    visit.page(&EventPage { frame, event, names })
}
