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
    frame::{Also, Frame, Me, Section},
    json_text::indented,
    live_region::{COUNTED, COUNTED_AT_MOST, LiveRegion, Newer, Top},
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
    /// The version of the list that the browser has, and where its rows begin.
    seen: String,
    top: String,
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

/// A page of rows.
struct Read {
    page: List<Event>,
    newer: Newer,
    /// Another text after each change of the rows or of the number of newer ones.
    version: String,
}

impl Read {
    async fn of(visit: &Visit, filter: &Filter) -> Result<Self, Refusal> {
        let Some(top) = Top::read(&filter.top) else {
            let (page, version) = visit.api.get_versioned(&filter.api_path()).await?;
            return Ok(Self { page, newer: Newer::default(), version: format!("{version}-0") });
        };
        let shown = Filter { to: top.end(&filter.to), ..filter.clone() };
        let later = Filter { from: top.beginning(&filter.from), ..filter.clone() };
        let (shown, later) = (shown.api_path(), later.api_path().with("limit", COUNTED_AT_MOST));
        let ((page, version), later) =
            tokio::try_join!(visit.api.get_versioned(&shown), visit.api.get::<List<Event>>(&later))?;
        let newer = Newer { count: later.data.len().min(COUNTED), is_more: later.next_cursor.is_some() };
        Ok(Self { page, newer, version: format!("{version}-{newer}") })
    }
}

/// The rows, and the links below them.
struct EventList {
    base: String,
    filter: Filter,
    page: List<Event>,
    newer: Newer,
    /// For the empty state.
    example: Example,
    live: Option<LiveRegion>,
}

impl EventList {
    fn new(visit: &Visit, me: &Me, filter: Filter, Read { page, newer, version }: Read) -> Self {
        let base = visit.site.base.clone();
        let mut fragment = filter.link(&format!("{base}/fragments/events"), "", "");
        // With the oldest first, later rows are behind the others and move none.
        let newest = page.data.first().filter(|_| filter.order != "oldest");
        let top = Top::read(&filter.top).or_else(|| newest.map(|event| Top::after(event.created_at)));
        if let Some(top) = top {
            append(&mut fragment, "top", &top.to_string());
        }
        let live = filter.cursor.is_empty().then(|| match filter.is_costly() || me.is_bound() {
            true => LiveRegion::slow(fragment),
            false => LiveRegion::prompt(fragment, &version),
        });
        Self { base, filter, page, newer, example: Example::new(visit, me), live }
    }

    /// The list with the rows that came later, and its fragment.
    fn newest(&self) -> [String; 2] {
        [self.path(), format!("{}/fragments/events", self.base)].map(|path| self.filter.link(&path, "", ""))
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
    let filter = Filter { top: String::new(), ..filter };
    let (me, read) = tokio::try_join!(visit.me(), Read::of(&visit, &filter))?;
    let list = EventList::new(&visit, &me, filter, read);
    let frame = visit.frame(me, Section::Events, "Events").live_if_first(&list.filter.cursor, Also::Events);
    visit.page(&EventsPage { frame, list })
}

/// The rows of the first page, for live updates.
pub(crate) async fn list_fragment(visit: Visit, Query(filter): Query<Filter>) -> Answered {
    let read = Read::of(&visit, &filter).await?;
    if read.version == filter.seen {
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
