//! The plan of a discard: how many dead letters match, what will happen to them, and the typed confirmation that settles
//! them.

use askama::Template;
use axum::extract::RawQuery;
use http::StatusCode;
use serde_json::json;
use weir_api_types as types;

use super::purge::{confirmation, counted_until, unconfirmed};
use crate::{
    client::ApiPath,
    delivery_filter::{Chip, DeliveryFilter},
    faults::Refused,
    fields::Fields,
    frame::{Frame, Section},
    names::Names,
    refusal::Refusal,
    units::Count,
    visit::{Answered, Visit},
};

/// The path of the plan, and of the form on it.
pub(crate) const PATH: &str = "/dead-letters/discard";

#[derive(Template)]
#[template(path = "discard_plan.html")]
struct PlanPage {
    frame: Frame,
    filter: DeliveryFilter,
    names: Names,
    /// The events before this instant are counted.
    counted_until: String,
    total: Count,
    /// There may be more.
    capped: bool,
    form: Refused,
}

impl PlanPage {
    fn chips(&self) -> Vec<Chip> {
        self.filter.chips(&format!("{}{PATH}", self.frame.base()), |id| self.names.of(id))
    }

    /// What the reader types.
    fn confirmation(&self) -> String {
        confirmation("discard", self.total)
    }

    fn dead_letters(&self) -> String {
        self.filter.link(&format!("{}/dead-letters", self.frame.base()))
    }
}

/// The filter of the fields. One that cannot be understood is refused: it would select more than was meant.
async fn filter_of(visit: &Visit, fields: &Fields) -> Result<DeliveryFilter, Refusal> {
    let filter = DeliveryFilter { order: String::new(), event: String::new(), ..DeliveryFilter::read(fields) };
    filter.resolved(visit).await?
}

pub(crate) async fn show(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let filter = filter_of(&visit, &Fields::parse(query.unwrap_or_default().as_bytes())).await?;
    page(&visit, StatusCode::OK, filter, Refused::default()).await
}

async fn page(visit: &Visit, status: StatusCode, filter: DeliveryFilter, form: Refused) -> Answered {
    let counted_until = counted_until(visit, &filter.to);
    let selected = DeliveryFilter { to: counted_until.clone(), ..filter.clone() };
    let (counting, body) = (ApiPath::of(["deliveries", "discard"]), selected.replay());
    let (me, counted) = tokio::try_join!(visit.me(), visit.api.dry_run::<types::DiscardCount>(counting, &body))?;
    let names = Names::read(visit, [&*filter.destination]).await;
    let frame = visit.frame(me, Section::DeadLetters, "Discard dead letters");
    let (total, capped) = (Count(counted.total), counted.capped);
    visit.page_with(status, &PlanPage { frame, filter, names, counted_until, total, capped, form })
}

/// The reason of a discard as a field of a form.
pub(super) fn reason_at(pointer: &str) -> Option<(String, String)> {
    (pointer == "/reason").then(|| ("reason".to_owned(), "Why".to_owned()))
}

pub(crate) async fn discard(visit: Visit, fields: Fields) -> Answered {
    let filter = filter_of(&visit, &fields).await?;
    if let Some(form) = unconfirmed(&fields, "discard") {
        return page(&visit, StatusCode::UNPROCESSABLE_ENTITY, filter, form).await;
    }
    let selected = DeliveryFilter { to: fields.text("counted_until").to_owned(), ..filter.clone() };
    let mut body = selected.replay();
    if !fields.text("reason").is_empty() {
        body["reason"] = json!(fields.text("reason"));
    }
    let answer = visit.api.post(&ApiPath::of(["deliveries", "discard"]), &body).await;
    if let Some(form) = Refused::by(&answer, &fields, reason_at) {
        return page(&visit, StatusCode::UNPROCESSABLE_ENTITY, filter, form).await;
    }
    // Refused: back to the plan. Done: to the dead letters that are left.
    let to = if answer.is_ok() { "/dead-letters".to_owned() } else { filter.link(PATH) };
    visit.after(&to, answer, |done: types::Discarded| {
        let word = if done.discarded == 1 { "dead letter is" } else { "dead letters are" };
        format!("{} {word} discarded.", Count(done.discarded))
    })
}
