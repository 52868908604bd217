//! The list of deliveries, with every filter of the API in the URL.

use askama::Template;
use axum::extract::RawQuery;
use serde::Deserialize;

use crate::{
    client::{ApiPath, append},
    delivery_filter::{Chip, DeliveryFilter, ERRORS, StateLink},
    example::Example,
    fields::Fields,
    frame::{Frame, Section},
    names::{Names, destination_id},
    units::{At, Count},
    visit::{Answered, Visit},
};

pub(crate) const PATH: &str = "/deliveries";

/// One delivery of a list.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct DeliveryRow {
    pub(crate) id: String,
    pub(crate) event_type: String,
    pub(crate) destination_id: String,
    pub(crate) state: String,
    pub(crate) attempt_count: Count,
    pub(crate) next_attempt_at: Option<At>,
    pub(crate) updated_at: At,
    pub(crate) last_error: Option<String>,
    pub(crate) last_status_code: Option<u16>,
}

impl DeliveryRow {
    pub(crate) fn tone(&self) -> &'static str {
        state_tone(&self.state)
    }

    /// Why the last attempt was no success: the status, or the error.
    pub(crate) fn problem(&self) -> String {
        match (self.last_status_code, &self.last_error) {
            (_, Some(error)) => error.clone(),
            (Some(status), None) if !(200..300).contains(&status) => format!("HTTP {status}"),
            _ => String::new(),
        }
    }
}

/// The colour of a state.
pub(crate) fn state_tone(state: &str) -> &'static str {
    match state {
        "delivered" => "good",
        "dead" | "failed" => "bad",
        "retrying" | "expired" => "warn",
        "delivering" | "pending" => "calm",
        _ => "",
    }
}

#[derive(Debug, Deserialize)]
struct Page {
    data: Vec<DeliveryRow>,
    next_cursor: Option<String>,
    count: Option<CountOf>,
}

/// How many deliveries match. The API counts to 10,000.
#[derive(Debug, Clone, Copy, Deserialize)]
struct CountOf {
    value: Count,
    capped: bool,
}

#[derive(Template)]
#[template(path = "deliveries.html")]
struct DeliveriesPage {
    frame: Frame,
    filter: DeliveryFilter,
    /// What was typed as the destination, and why it names none.
    problem: Option<String>,
    page: Page,
    names: Names,
    cursor: String,
    example: Example,
}

impl DeliveriesPage {
    fn chips(&self) -> Vec<Chip> {
        self.filter.chips(&format!("{}{PATH}", self.frame.base()), |id| self.names.of(id))
    }

    fn states(&self) -> Vec<StateLink> {
        self.filter.state_links(&format!("{}{PATH}", self.frame.base()))
    }

    /// The page that shows the newest deliveries of the filter, or the oldest.
    fn here(&self) -> String {
        self.filter.link(&format!("{}{PATH}", self.frame.base()))
    }

    fn first(&self) -> Option<String> {
        (!self.cursor.is_empty()).then(|| self.here())
    }

    fn next(&self) -> Option<String> {
        let mut link = self.here();
        append(&mut link, "cursor", self.page.next_cursor.as_deref()?);
        Some(link)
    }

    /// The same rows in the other order.
    fn turned(&self) -> String {
        let order = if self.filter.order == "oldest" { "" } else { "oldest" };
        let filter = DeliveryFilter { order: order.to_owned(), ..self.filter.clone() };
        filter.link(&format!("{}{PATH}", self.frame.base()))
    }

    /// Where all that match can be replayed.
    fn replay(&self) -> Option<String> {
        let is_offered = self.frame.can_operate() && self.filter.is_replayable() && !self.page.data.is_empty();
        is_offered.then(|| self.filter.link(&format!("{}/replays/new", self.frame.base())))
    }
}

pub(crate) async fn show(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let mut filter = DeliveryFilter::read(&fields);
    let cursor = fields.text("cursor").to_owned();
    let problem = match destination_id(&visit, &filter.destination).await? {
        // The link of the page has the id, whatever was typed.
        Ok(id) if id != filter.destination => {
            return visit.redirect(&DeliveryFilter { destination: id, ..filter }.link(PATH), None);
        }
        Ok(_) => None,
        Err(problem) => {
            filter.destination.clear();
            Some(problem)
        }
    };
    let path = filter.api_path(ApiPath::of(["deliveries"])).with("count", "true").with("cursor", &cursor);
    let (me, page) = tokio::try_join!(visit.me(), visit.api.get::<Page>(&path))?;
    let mentioned = page.data.iter().map(|row| &*row.destination_id).chain([&*filter.destination]);
    let names = Names::read(&visit, mentioned).await;
    let example = Example::new(&visit, &me);
    let frame = visit.frame(me, Section::Deliveries, "Deliveries");
    visit.page(&DeliveriesPage { frame, filter, problem, page, names, cursor, example })
}
