//! What a destination has to send, and what bounds it. `/backlog` and `/preview` forecast from this, so they agree.

use std::time::Duration;

use weir_core::{
    Destination, Limiter, RateLimits, Timestamp,
    preview::{Answers, Drain, Forecast, steady_inflow},
};
use weir_store::DestinationCounts;

use crate::{problem::ApiResult, state::ApiState};

/// The two halves of the time over which the inflow is measured.
const INFLOW_HALF: Duration = Duration::from_secs(30);
/// The time over which the answer time of the destination is measured.
const ANSWERS: Duration = Duration::from_secs(5 * 60);

/// What a destination has to send, and what it has sent.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) now: Timestamp,
    /// Pending and retrying deliveries.
    pub(super) waiting: u64,
    /// The new deliveries of the last minute, per second.
    pub(super) arrivals_per_s: f64,
    /// The inflow that a forecast expects.
    pub(super) inflow_per_s: f64,
    pub(super) last_sent_at: Option<Timestamp>,
    pub(super) held_until: Option<Timestamp>,
    /// The average answer time; `None` without recent answers.
    pub(super) answer_time: Option<Duration>,
}

impl Load {
    pub(super) async fn read(
        api: &ApiState,
        destination: &Destination,
        counts: &DestinationCounts,
        now: Timestamp,
    ) -> ApiResult<Self> {
        let (store, id) = (&api.store, destination.id);
        let newer = store.recent_arrivals(id, now, INFLOW_HALF).await?;
        let both = store.recent_arrivals(id, now, INFLOW_HALF * 2).await?;
        let per_s = |arrivals: u64| arrivals as f64 / INFLOW_HALF.as_secs_f64();
        let last_sent_at = store.send_history(&[id]).await?.first().and_then(|history| history.last_sent_at);
        let latencies = store.health(id, now.before(ANSWERS)).await?.latencies;
        Ok(Self {
            now,
            waiting: counts.pending + counts.retrying,
            arrivals_per_s: per_s(both) / 2.0,
            inflow_per_s: steady_inflow(per_s(both.saturating_sub(newer)), per_s(newer)),
            last_sent_at,
            held_until: destination.held_until,
            answer_time: latencies.mean().map(|ms| Duration::from_secs_f64(ms / 1_000.0)),
        })
    }

    /// How the destination would send with these settings. A hold counts; a pause or an open breaker does not.
    pub(super) fn forecast(&self, limits: &RateLimits, max_in_flight: u32) -> Forecast {
        // The cursors are in the queue. Under a backlog they are where the last send left them.
        let mut limiter = Limiter::recovered(limits, self.last_sent_at);
        limiter.hold(self.held_until.unwrap_or(Timestamp::MIN));
        let answers = self.answer_time.map(|time| Answers { max_in_flight, time });
        Forecast::new(&limiter, answers, self.now)
    }

    /// When the backlog becomes empty, according to the forecast.
    pub(super) fn drain(&self, forecast: &Forecast) -> Drain {
        forecast.drain(self.waiting, self.inflow_per_s)
    }
}

/// Rounded to three digits after the point.
pub(super) fn millis(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
