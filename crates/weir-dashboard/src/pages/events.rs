//! Events: the list, and one event with its deliveries and its body.

use std::borrow::Cow;

use askama::Template;
use axum::extract::Query;
use serde::Deserialize;
use serde_json::value::RawValue;
use weir_api_types::{Delivery, Event, EventDetail, List};
use weir_core::{body::BodySettings, event::EventBody};

use super::deliveries::DeliveryText as _;
use crate::{
    client::{ApiPath, append},
    delivery_filter::{Chip, instant},
    example::Example,
    extend::extend,
    frame::{Frame, Me, Section},
    json_text::indented,
    live_region::LiveRegion,
    names::Names,
    path_id::PathId,
    refusal::Refusal,
    units::Units as _,
    views::WaitsForText as _,
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
    /// The version of the list that the browser has.
    seen: String,
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

    fn api_path(&self) -> ApiPath {
        ApiPath::of(["events"])
            .with("type", self.event_type.trim())
            .with("tenant", self.tenant.trim())
            .with("idempotency_key", self.idempotency_key.trim())
            .with("from", &instant(&self.from))
            .with("to", &instant(&self.to))
            .with("order", &self.order)
            .with("cursor", &self.cursor)
    }

    /// Whether the store examines thousands of events for a page: no index has their types and tenants.
    fn is_costly(&self) -> bool {
        self.idempotency_key.is_empty() && !(self.event_type.is_empty() && self.tenant.is_empty())
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

pub(crate) async fn read(visit: &Visit, id: &str) -> Result<EventDetail, Refusal> {
    visit.api.get(&ApiPath::of(["events", id])).await
}

extend! {
    pub(crate) trait EventText for Event {
        /// The body that a destination with these settings receives, byte for byte.
        fn body_for(&self, settings: &BodySettings) -> SentBody {
            let envelope = self.envelope();
            let data = self.data.as_deref().map_or("null", RawValue::get);
            let offset = u32::try_from(envelope.len().saturating_sub(data.len() + 1)).unwrap_or_default();
            let sent = settings.of(&EventBody::stored(envelope.into(), offset), &self.tenant);
            SentBody { text: String::from_utf8_lossy(&sent).into_owned(), whereto: "" }
        }

        /// The body that a destination receives unless it has another setting.
        fn body(&self) -> SentBody {
            SentBody { text: self.envelope(), whereto: ", unless the destination sets another form" }
        }

        /// Byte for byte as in `weir_core::event::EventBody`.
        fn envelope(&self) -> String {
            let data = self.data.as_deref().map_or("null", RawValue::get);
            let Self { id, event_type, created_at, .. } = self;
            format!(r#"{{"id":"{id}","type":"{event_type}","timestamp":"{}","data":{data}}}"#, created_at)
        }
    }
}

/// A body, as a page shows it.
pub(crate) struct SentBody {
    text: String,
    whereto: &'static str,
}

impl SentBody {
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn raw(&self) -> &str {
        &self.text
    }

    pub(crate) fn indented(&self) -> Cow<'_, str> {
        indented(&self.text)
    }

    pub(crate) fn whereto(&self) -> &'static str {
        self.whereto
    }
}

/// The rows, and the links below them.
struct EventList {
    base: String,
    filter: Filter,
    page: List<Event>,
    /// For the empty state.
    example: Example,
    live: Option<LiveRegion>,
}

impl EventList {
    fn new(visit: &Visit, me: &Me, filter: Filter, (page, version): (List<Event>, String)) -> Self {
        let base = visit.site.base.clone();
        let fragment = filter.link(&format!("{base}/fragments/events"), "", "");
        let live = filter.cursor.is_empty().then(|| match filter.is_costly() || me.is_bound() {
            true => LiveRegion::slow(fragment),
            false => LiveRegion::prompt(fragment, &version),
        });
        Self { base, filter, page, example: Example::new(visit, me), live }
    }

    fn path(&self) -> String {
        format!("{}/events", self.base)
    }

    fn is_filtered(&self) -> bool {
        !self.filter.cursor.is_empty() || self.filter.conditions().iter().any(|(_, _, value)| !value.is_empty())
    }

    fn first(&self) -> Option<String> {
        (!self.filter.cursor.is_empty()).then(|| self.filter.link(&self.path(), "", ""))
    }

    fn next(&self) -> Option<String> {
        Some(self.filter.link(&self.path(), "", self.page.next_cursor.as_deref()?))
    }
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage {
    frame: Frame,
    list: EventList,
}

impl EventsPage {
    fn chips(&self) -> Vec<Chip> {
        let filter = &self.list.filter;
        let set = filter.conditions().into_iter().filter(|(_, _, value)| !value.is_empty());
        let chip = |(parameter, name, value): (&str, &'static str, &String)| Chip {
            name,
            value: value.clone(),
            without: filter.link(&self.list.path(), parameter, ""),
        };
        set.map(chip).collect()
    }
}

#[derive(Template)]
#[template(path = "events_list.html")]
struct EventsList {
    list: EventList,
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    frame: Frame,
    event: Event,
    deliveries: Vec<Delivery>,
    names: Names,
}

pub(crate) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Answered {
    let path = filter.api_path();
    let (me, read) = tokio::try_join!(visit.me(), visit.api.get_versioned(&path))?;
    let list = EventList::new(&visit, &me, filter, read);
    let frame = visit.frame(me, Section::Events, "Events").live_if_first(&list.filter.cursor);
    visit.page(&EventsPage { frame, list })
}

/// The rows of the first page, for live updates.
pub(crate) async fn list_fragment(visit: Visit, Query(filter): Query<Filter>) -> Answered {
    let read = visit.api.get_versioned(&filter.api_path()).await?;
    if read.1 == filter.seen {
        return visit.unchanged();
    }
    let me = visit.me().await?;
    visit.fragment(&EventsList { list: EventList::new(&visit, &me, filter, read) })
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId) -> Answered {
    let (me, EventDetail { event, deliveries }) = tokio::try_join!(visit.me(), read(&visit, &id))?;
    let names = Names::read(&visit, deliveries.iter().map(|row| &*row.destination_id)).await;
    let frame = visit.frame(me, Section::Events, event.event_type.clone());
    visit.page(&EventPage { frame, event, deliveries, names })
}
