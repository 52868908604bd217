//! A new replay: the form that says which deliveries, and the plan: how many match, what will happen to them, and the
//! typed confirmation that starts it. The page without a filter has only the form.

use askama::Template;
use axum::extract::RawQuery;
use http::{Method, StatusCode};
use weir_api_types::{self as types, OverviewRow, Replay};

use crate::{
    client::{ApiPath, Call},
    delivery_filter::{Chip, DeliveryFilter, ERRORS, REPLAYABLE},
    faults::{Faults, Refused},
    fields::Fields,
    flash::Flash,
    frame::{Frame, Section},
    names::Names,
    range::Picker,
    refusal::Refusal,
    units::{Count, Seconds, Units as _},
    views::{BriefText as _, accepted},
    visit::{Answered, Visit},
};

use super::purge::{confirmation, counted_until, unconfirmed};

#[derive(Template)]
#[template(path = "new_replay.html")]
struct FormPage {
    frame: Frame,
    /// What was typed.
    filter: DeliveryFilter,
    faults: Faults,
    range: Picker,
}

#[derive(Template)]
#[template(path = "replay_plan.html")]
struct PlanPage {
    frame: Frame,
    filter: DeliveryFilter,
    faults: Faults,
    range: Picker,
    names: Names,
    /// The events before this instant are counted.
    counted_until: String,
    total: Count,
    /// The destination, if the replay has only one.
    destination: Option<OverviewRow>,
    /// Makes a form that is sent twice start one replay.
    form: String,
    confirming: Refused,
}

impl PlanPage {
    fn chips(&self) -> Vec<Chip> {
        self.filter.chips(&format!("{}/replays/new", self.frame.base()), |id| self.names.of(id))
    }

    /// What the reader types.
    fn confirmation(&self) -> String {
        confirmation("replay", self.total)
    }

    /// How long it takes at the least, at the limit of the destination.
    fn at_least(&self) -> Option<Seconds> {
        let rate = self.destination.as_ref()?.effective_per_s?;
        (rate > 0.0 && self.total.0 > 0).then(|| Seconds(self.total.0 as f64 / rate))
    }

    fn dead_letters(&self) -> String {
        let filter = DeliveryFilter { state: String::new(), ..self.filter.clone() };
        filter.link(&format!("{}/dead-letters", self.frame.base()))
    }
}

async fn count(visit: &Visit, filter: &DeliveryFilter, until: &str) -> Result<Count, Refusal> {
    let selected = DeliveryFilter { to: until.to_owned(), ..filter.clone() };
    let counted: types::Count = visit.api.dry_run(ApiPath::of(["replays"]), &selected.replay()).await?;
    Ok(Count(counted.total))
}

/// Whether a replay of this filter takes the deliveries in a state. Without states it takes the dead and the failed ones.
fn takes(filter: &DeliveryFilter, state: &str) -> bool {
    filter.has_state(state) || (filter.state.is_empty() && ["dead", "failed"].contains(&state))
}

fn typed(fields: &Fields) -> DeliveryFilter {
    DeliveryFilter { order: String::new(), ..DeliveryFilter::read(fields) }
}

/// The filter of the fields. One that cannot be understood is refused: it would select more than was meant.
async fn filter_of(visit: &Visit, fields: &Fields) -> Result<DeliveryFilter, Refusal> {
    let filter = typed(fields);
    if !filter.event.is_empty() {
        let detail = "A replay cannot be limited to one event. Retry the deliveries of the event one by one instead.";
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "The filter matches nothing", detail));
    }
    filter.resolved(visit).await?
}

/// The form alone: nothing was chosen yet, or what was chosen matches nothing.
async fn form(visit: &Visit, status: StatusCode, filter: DeliveryFilter, faults: Faults) -> Answered {
    let range = Picker::of(&visit.site, &filter.from, &filter.to);
    let frame = visit.frame(visit.me().await?, Section::Replays, "New replay");
    visit.page_with(status, &FormPage { frame, filter, faults, range })
}

/// What is wrong with a filter, beside its fields.
fn faults_of(refusal: &Refusal, filter: &DeliveryFilter) -> Faults {
    if refusal.errors.is_empty() && !filter.destination.is_empty() && refusal.detail.contains(&filter.destination) {
        let mut faults = Faults::default();
        faults.add("destination", "Destination", refusal.detail.clone());
        return faults;
    }
    Faults::of(refusal, |pointer| {
        let (name, label) = match pointer.split('/').nth(1)? {
            "states" => ("state", "States"),
            "destination" => ("destination", "Destination"),
            "tenant" => ("tenant", "Tenant"),
            "event_type" => ("event_type", "Event type"),
            "error" => ("error", "Error"),
            _ => return None,
        };
        Some((name.to_owned(), label.to_owned()))
    })
}

pub(crate) async fn show(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    if fields.is_empty() {
        return form(&visit, StatusCode::OK, DeliveryFilter::default(), Faults::default()).await;
    }
    match filter_of(&visit, &fields).await {
        Ok(filter) => plan(&visit, StatusCode::OK, filter, Refused::default()).await,
        Err(refusal) if is_wrong(&refusal) => {
            let filter = typed(&fields);
            let faults = faults_of(&refusal, &filter);
            form(&visit, refusal.status, filter, faults).await
        }
        Err(refusal) => Err(refusal),
    }
}

fn is_wrong(refusal: &Refusal) -> bool {
    refusal.status == StatusCode::UNPROCESSABLE_ENTITY
}

/// What a filter selects, to be confirmed.
async fn plan(visit: &Visit, status: StatusCode, filter: DeliveryFilter, confirming: Refused) -> Answered {
    let counted_until = counted_until(visit, &filter.to);
    let total = match count(visit, &filter, &counted_until).await {
        Ok(total) => total,
        Err(refusal) if is_wrong(&refusal) => {
            let faults = faults_of(&refusal, &filter);
            return form(visit, refusal.status, filter, faults).await;
        }
        Err(refusal) => return Err(refusal),
    };
    let me = visit.me().await?;
    let names = Names::read(visit, [&*filter.destination]).await;
    let destination = match &*filter.destination {
        "" => None,
        // The plan is useful without it.
        id => visit.api.get(&ApiPath::of(["destinations", id, "overview"])).await.ok(),
    };
    let form = format!("form-{}", visit.site.clock.now().as_nanos());
    let frame = visit.frame(me, Section::Replays, "Replay all that match");
    let (faults, range) = (Faults::default(), Picker::of(&visit.site, &filter.from, &filter.to));
    let page = PlanPage { frame, filter, faults, range, names, counted_until, total, destination, form, confirming };
    visit.page_with(status, &page)
}

pub(crate) async fn create(visit: Visit, fields: Fields) -> Answered {
    let filter = filter_of(&visit, &fields).await?;
    if let Some(confirming) = unconfirmed(&fields, "replay") {
        return plan(&visit, StatusCode::UNPROCESSABLE_ENTITY, filter, confirming).await;
    }
    let back = filter.link("/replays/new");
    let selected = DeliveryFilter { to: fields.text("counted_until").to_owned(), ..filter };
    let call = Call::new(Method::POST, &ApiPath::of(["replays"])).json(&selected.replay())?;
    match visit.api.send(&call.idempotency_key(fields.text("form"))?).await {
        Ok(answer) => {
            let created: Replay = answer.read()?;
            let text = accepted(created.waits_for.as_ref(), "The replay has started.", "");
            visit.redirect(&format!("/replays/{}", created.id), Some(Flash::done(text)))
        }
        Err(refusal) => visit.after(&back, Err::<(), _>(refusal), |()| String::new()),
    }
}
