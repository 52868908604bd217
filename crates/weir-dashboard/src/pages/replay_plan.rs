//! The plan of a replay: how many deliveries match, what will happen to them, and the typed confirmation that starts it.

use askama::Template;
use axum::extract::RawQuery;
use http::Method;
use serde::Deserialize;

use crate::{
    client::{ApiPath, Call},
    delivery_filter::{Chip, DeliveryFilter},
    fields::Fields,
    flash::Flash,
    frame::{Frame, Section},
    names::Names,
    refusal::Refusal,
    units::{Count, PerSecond, Seconds},
    visit::{Answered, Visit},
};

#[derive(Debug, Deserialize)]
struct Counted {
    total: Count,
}

#[derive(Debug, Deserialize)]
struct Created {
    id: String,
}

/// What the plan shows of the only destination (`GET /v1/destinations/{id}/overview`).
#[derive(Debug, Deserialize)]
struct Receiver {
    destination: ReceiverState,
    backlog: Count,
    effective_per_s: Option<PerSecond>,
    arrivals_per_s: PerSecond,
}

#[derive(Debug, Deserialize)]
struct ReceiverState {
    name: String,
    url: String,
    paused: bool,
    breaker_state: String,
}

impl Receiver {
    fn label(&self) -> &str {
        if self.destination.name.is_empty() { &self.destination.url } else { &self.destination.name }
    }
}

#[derive(Template)]
#[template(path = "replay_plan.html")]
struct PlanPage {
    frame: Frame,
    filter: DeliveryFilter,
    names: Names,
    total: Count,
    /// The destination, if the replay has only one.
    destination: Option<Receiver>,
    /// Makes a form that is sent twice start one replay.
    form: String,
}

impl PlanPage {
    fn chips(&self) -> Vec<Chip> {
        self.filter.chips(&format!("{}/replays/new", self.frame.base()), |id| self.names.of(id))
    }

    /// What the reader types.
    fn confirmation(&self) -> String {
        confirmation(self.total)
    }

    /// How long it takes at the least, at the limit of the destination.
    fn at_least(&self) -> Option<Seconds> {
        let rate = self.destination.as_ref()?.effective_per_s?.0;
        (rate > 0.0 && self.total.0 > 0).then(|| Seconds(self.total.0 as f64 / rate))
    }

    fn dead_letters(&self) -> String {
        let filter = DeliveryFilter { state: String::new(), ..self.filter.clone() };
        filter.link(&format!("{}/dead-letters", self.frame.base()))
    }
}

fn confirmation(total: Count) -> String {
    format!("replay {}", total.0)
}

async fn count(visit: &Visit, filter: &DeliveryFilter) -> Result<Count, Refusal> {
    let counted: Counted = visit.api.dry_run(ApiPath::of(["replays"]), &filter.replay()).await?;
    Ok(counted.total)
}

pub(crate) async fn show(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let filter = DeliveryFilter { order: String::new(), event: String::new(), ..DeliveryFilter::read(&fields) };
    let (me, total) = tokio::try_join!(visit.me(), count(&visit, &filter))?;
    let names = Names::read(&visit, [&*filter.destination]).await;
    let destination = match &*filter.destination {
        "" => None,
        // The plan is useful without it.
        id => visit.api.get(&ApiPath::of(["destinations", id, "overview"])).await.ok(),
    };
    let form = format!("form-{}", visit.site.clock.now().as_nanos());
    let frame = visit.frame(me, Section::Replays, "New replay");
    visit.page(&PlanPage { frame, filter, names, total, destination, form })
}

pub(crate) async fn create(visit: Visit, fields: Fields) -> Answered {
    let filter = DeliveryFilter { order: String::new(), event: String::new(), ..DeliveryFilter::read(&fields) };
    let plan = filter.link("/replays/new");
    let expected = fields.text("total").parse().map_or_else(|_| String::new(), |total| confirmation(Count(total)));
    if expected.is_empty() || fields.text("confirm") != expected {
        let unsure = "Nothing was replayed: the confirmation was not typed as shown.";
        return visit.redirect(&plan, Some(Flash::error(unsure)));
    }
    let call = Call::new(Method::POST, &ApiPath::of(["replays"])).json(&filter.replay())?;
    match visit.api.send(&call.idempotency_key(fields.text("form"))?).await {
        Ok(answer) => {
            let created: Created = answer.read()?;
            visit.redirect(&format!("/replays/{}", created.id), Some(Flash::done("The replay has started.")))
        }
        Err(refusal) => visit.after(&plan, Err::<(), _>(refusal), |()| String::new()),
    }
}
