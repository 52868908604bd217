//! The circuit breaker of a destination, as it is set and shown.

use weir_api_types as types;
use weir_core::breaker::BreakerPolicy;

use crate::{errors::Errors, readers::fields::object};

object! {
    /// The circuit breaker, which stops sends to a failing destination. An attempt fails if the response is not 2xx.
    /// `Retry-After` and 410 have separate rules.
    pub(crate) struct BreakerRequest {
        /// The breaker opens if more than this share of the attempts of the last minute failed, with at least
        /// `min_attempts` attempts.
        #[schema(minimum = 0, maximum = 1, default = json!(BreakerPolicy::default().failure_ratio))]
        failure_ratio: Option<f64>,
        #[schema(minimum = 1, maximum = 100_000, default = json!(BreakerPolicy::default().min_attempts))]
        min_attempts: Option<u32>,
        /// The breaker opens after this many failures in a row.
        #[schema(minimum = 1, maximum = 100_000, default = json!(BreakerPolicy::default().consecutive))]
        consecutive: Option<u32>,
        /// Nothing is sent for this time after the breaker opens. Then one probe is sent at a time.
        #[schema(minimum = 100, maximum = 86_400_000, default = json!(BreakerPolicy::default().open_ms))]
        open_ms: Option<u32>,
        /// Each failed probe doubles the open time, up to this time. At least `open_ms`.
        #[schema(minimum = 100, maximum = 86_400_000, default = json!(BreakerPolicy::default().open_max_ms))]
        open_max_ms: Option<u32>,
        /// The destination is paused when every probe has failed for this time; `null`: never.
        #[schema(
            value_type = Option<u32>, minimum = 1, maximum = 31_536_000,
            default = json!(BreakerPolicy::default().pause_after_s)
        )]
        pause_after_s: Option<Option<u32>>,
    }
    check = Self::check;
}

impl BreakerRequest {
    fn check(&self, at: &str, errors: &mut Errors) {
        if let (Some(open), Some(max)) = (self.open_ms, self.open_max_ms)
            && open > max
        {
            errors.add(format!("{at}/open_max_ms"), format!("must be at least `open_ms`, which is {open}"));
        }
    }
}

impl From<BreakerRequest> for BreakerPolicy {
    /// If only one of the two open times is given, the default of the other one is adapted to it.
    fn from(request: BreakerRequest) -> Self {
        let default = Self::default();
        let BreakerRequest { open_ms, open_max_ms, .. } = request;
        Self {
            failure_ratio: request.failure_ratio.unwrap_or(default.failure_ratio),
            min_attempts: request.min_attempts.unwrap_or(default.min_attempts),
            consecutive: request.consecutive.unwrap_or(default.consecutive),
            open_ms: open_ms.unwrap_or(default.open_ms.min(open_max_ms.unwrap_or(default.open_max_ms))),
            open_max_ms: open_max_ms.unwrap_or(default.open_max_ms.max(open_ms.unwrap_or(default.open_ms))),
            pause_after_s: request.pause_after_s.unwrap_or(default.pause_after_s),
        }
    }
}

pub(crate) fn view(policy: &BreakerPolicy) -> types::Breaker {
    let &BreakerPolicy { failure_ratio, min_attempts, consecutive, open_ms, open_max_ms, pause_after_s } = policy;
    types::Breaker { failure_ratio, min_attempts, consecutive, open_ms, open_max_ms, pause_after_s }
}
