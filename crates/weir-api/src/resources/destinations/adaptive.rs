//! The adaptive pace of a destination: its bounds as they are set, the pace as it is shown.

use weir_api_types as types;
use weir_core::{
    Destination,
    adaptive::{AdaptiveRate, Settings, Status},
};
use weir_queue::known_paces;

use crate::{errors::Errors, figures::millis, problem::ApiResult, readers::fields::object, state::ApiState};

/// One in a minute: a receiver that takes less is better held.
const DEFAULT_MIN_PER_S: f64 = 0.0167;

object! {
    /// A pace that finds itself below the limits: it rises while the receiver takes all requests, and falls when it refuses
    /// them (429, 502, 503, 504, timeouts, no connection). It can only delay: every limit stays exact.
    pub(crate) struct AdaptiveRequest {
        /// The pace never falls below this.
        #[schema(minimum = 0.0001, maximum = 1_000_000, default = json!(DEFAULT_MIN_PER_S))]
        min_per_s: Option<f64>,
        /// `null`: as fast as the receiver takes it, below the limits. At least `min_per_s`.
        #[schema(minimum = 0.0001, maximum = 1_000_000)]
        max_per_s: Option<f64>,
        /// Whether late answers bound the requests in flight too.
        #[schema(default = true)]
        latency: Option<bool>,
    }
    check = Self::check;
}

impl AdaptiveRequest {
    fn check(&self, at: &str, errors: &mut Errors) {
        let min = self.min_per_s.unwrap_or(DEFAULT_MIN_PER_S);
        if self.max_per_s.is_some_and(|max| max < min) {
            errors.add(format!("{at}/max_per_s"), format!("must be at least `min_per_s`, which is {min}"));
        }
    }
}

impl From<AdaptiveRequest> for Settings {
    fn from(request: AdaptiveRequest) -> Self {
        Self {
            min_per_s: request.min_per_s.unwrap_or(DEFAULT_MIN_PER_S),
            max_per_s: request.max_per_s,
            latency: request.latency.unwrap_or(true),
        }
    }
}

pub(crate) fn view(settings: &Settings) -> types::Adaptive {
    let &Settings { min_per_s, max_per_s, latency } = settings;
    types::Adaptive { min_per_s, max_per_s, latency }
}

pub(crate) fn rate_view(status: &Status) -> types::AdaptiveRate {
    let Status { per_s, since, reason, detail } = status;
    types::AdaptiveRate { per_s: millis(*per_s), since: *since, reason: reason.to_string(), detail: detail.clone() }
}

/// The pace of a destination, or else its last copy. `None`: it is not adaptive, or has not sent yet.
pub(crate) async fn pace_of(api: &ApiState, destination: &Destination) -> ApiResult<Option<Status>> {
    if destination.settings.adaptive.is_none() {
        return Ok(None);
    }
    let known = known_paces(&api.queue, std::iter::once(destination)).await.remove(&destination.id);
    if known.is_some() {
        return Ok(known);
    }
    let copy = api.store.paces(&[destination.id]).await?.pop().flatten();
    // A copy of another version may not be readable.
    Ok(copy.and_then(|copy| Some(serde_json::from_str::<AdaptiveRate>(&copy.json).ok()?.status(copy.saved_at))))
}
