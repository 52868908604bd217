//! Tries other limits on the recorded past of a destination. Nothing is changed. `past` puts the records together,
//! [`weir_core::simulate`] plays them.

mod past;

use std::{panic::resume_unwind, sync::Arc, thread, time::Duration};

use axum::{Extension, Json, extract::State};
use tokio::task::{spawn_blocking, yield_now};
use weir_api_types as types;
use weir_core::{
    Destination, Period, RateLimit, Timestamp,
    audit::LatencyPercentiles,
    simulate::{Past, Simulated, Trial, simulate, smallest_limit},
};
use weir_store::PastRequest;

use super::{
    audit::in_time,
    destinations::{
        self,
        rates::{self, Limits, RateLimitRequest},
    },
};
use crate::{
    auth::Caller,
    fair_share::Seat,
    problem::{ApiResult, Problem, internal},
    readers::{
        body::{Body, PathId},
        fields::object,
        query::Query,
        texts::{DestinationIdText, FailuresText, TimeText},
    },
    state::{Api, ApiState},
};

const DEFAULT_RANGE: Duration = Duration::from_secs(24 * 60 * 60);
/// The records of a page: of attempts, and of deliveries without any.
const PAGE: u32 = 5_000;
/// The default target of the smallest limit: 99 of 100 deliveries are answered within a minute.
const TARGET_MS: u32 = 60_000;

object! {
    /// What is tried. An absent setting keeps its current value.
    pub(crate) struct SimulateRequest {
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4)]
        rate_limits: Option<Limits>,
        /// `null` is none.
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 60_000)]
        min_interval_ms: Option<Option<u32>>,
        #[schema(minimum = 1, maximum = 10_000)]
        max_in_flight: Option<u32>,
        /// The start of the range; without it, a day before `to`.
        from: Option<TimeText>,
        /// The end of the range; without it, now.
        to: Option<TimeText>,
        /// How many times the traffic: deliveries are repeated or left out evenly.
        #[schema(minimum = 0.01, maximum = 100, default = 1)]
        scale: Option<f64>,
        failures: Option<FailuresText>,
        target: Option<TargetRequest>,
    }
}

object! {
    /// What `smallest_limit` keeps.
    pub(crate) struct TargetRequest {
        /// The longest time within which 99 of 100 deliveries are answered, from when they are due.
        #[schema(minimum = 1, maximum = 2_000_000_000, default = 60_000)]
        latency_p99_ms: Option<u32>,
    }
}

/// Try limits on the past
///
/// Plays the deliveries that were due in the range as if other limits had been in force. The real limiter runs, and
/// requests take as long as they did. Nothing is changed and nothing is sent. Pauses, holds, breakers, the order of
/// ordering keys and the limits of single limit keys are not played, and the sends of replays are left out. At most a million deliveries are played, the
/// latest of the range; one simulation runs at one time.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/simulate", operation_id = "simulate_limits", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")), request_body = SimulateRequest,
    responses((status = 200, description = "What would have happened", body = types::Simulation))
)]
pub(crate) async fn run(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    _: Query<()>,
    Extension(seat): Extension<Arc<Seat>>,
    Body(request): Body<SimulateRequest>,
) -> ApiResult<Json<types::Simulation>> {
    let destination = destinations::find(&api, &caller, id).await?;
    let (mut trial, target) = request.trial(&destination, api.clock.now())?;
    let (past, from) = in_time("the simulation", read(&api, &destination, &trial)).await?;
    let truncated = from > trial.from;
    let ignores_key_limits = destination.settings.key_limits.as_ref().is_some_and(|limits| limits.may_bind());
    trial.from = from;
    let play = move || {
        // Another simulation waits for the end of this one, also if the client has gone.
        let _seat = seat;
        let first = trial.limits.as_slice().first().copied().or_else(|| RateLimit::new(1, Period::SECOND));
        // The search takes about twice as long as the run, so each has a thread.
        let first = first.filter(|_| !past.is_empty());
        let search = || first.and_then(|limit| smallest_limit(&past, &trial, limit, target));
        let (smallest, seen) = thread::scope(|threads| {
            let search = threads.spawn(search);
            let seen = simulate(&past, &trial);
            (search.join().unwrap_or_else(|panic| resume_unwind(panic)), seen)
        });
        types::Simulation { ignores_key_limits, ..view(&trial, seen, smallest, truncated) }
    };
    spawn_blocking(play).await.map(Json).map_err(|error| internal("a simulation has failed", &error))
}

impl SimulateRequest {
    fn trial(self, destination: &Destination, now: Timestamp) -> ApiResult<(Trial, Duration)> {
        let settings = &destination.settings;
        let to = self.to.map_or(now, |to| to.0.min(now));
        let from = self.from.map_or_else(|| to.before(DEFAULT_RANGE), |from| from.0).max(Timestamp::MIN);
        if from >= to {
            return Err(Problem::invalid_field("/from", "must be before `to`, and in the past"));
        }
        let trial = Trial {
            limits: rates::proposed(&settings.rate_limits, self.rate_limits, self.min_interval_ms),
            max_in_flight: self.max_in_flight.unwrap_or(settings.max_in_flight),
            scale: self.scale.unwrap_or(1.0),
            repeats_failures: self.failures.is_none_or(|failures| failures.0),
            from,
            to,
        };
        let target_ms = self.target.and_then(|target| target.latency_p99_ms).unwrap_or(TARGET_MS);
        Ok((trial, Duration::from_millis(target_ms.into())))
    }
}

/// The past of the range, and where it begins: later than asked for if there is more than a simulation takes.
async fn read(api: &ApiState, destination: &Destination, trial: &Trial) -> ApiResult<(Past, Timestamp)> {
    let mut reading = past::Reading::new(trial, &destination.settings.retry);
    let mut request = PastRequest::new(destination.id, trial.to, PAGE);
    loop {
        let page = api.store.past(request).await?;
        let goes_on = page.iter().all(|record| reading.add(record));
        match page.last().filter(|_| goes_on && page.len() == PAGE as usize) {
            Some(last) => request.after = last.position(),
            None => return Ok(reading.finish()),
        }
        yield_now().await;
    }
}

fn view(trial: &Trial, seen: Simulated, smallest: Option<RateLimit>, truncated: bool) -> types::Simulation {
    let latency = |LatencyPercentiles { p50, p95, p99, max }| types::Latency { p50, p95, p99, max };
    let limit = |audited: &weir_core::audit::LimitAudit| types::SimulatedLimit {
        limit: audited.limit,
        period: audited.period.to_string(),
        burst: audited.burst,
        utilisation: audited.utilisation,
    };
    let point = |point: weir_core::simulate::Point| types::SimulationPoint {
        at: point.at,
        due: point.due,
        sent: point.sent,
        backlog: point.backlog,
        recorded_backlog: point.recorded_backlog,
    };
    types::Simulation {
        from: trial.from,
        to: trial.to,
        deliveries: seen.deliveries,
        truncated,
        ignores_key_limits: false,
        backlog_max: types::BacklogMax { at: seen.backlog_max.0, count: seen.backlog_max.1 },
        backlog_end: seen.backlog_end,
        drained_at: seen.drained_at,
        would_expire: seen.would_expire,
        latency_ms: latency(seen.audit.delivery_latency_ms),
        recorded_latency_ms: latency(seen.recorded_latency_ms),
        rate_limits: seen.audit.rate_limits.iter().map(limit).collect(),
        verdict: <&str>::from(seen.verdict).to_owned(),
        smallest_limit: smallest.as_ref().map(rates::view),
        series: seen.series.into_iter().map(point).collect(),
    }
}
