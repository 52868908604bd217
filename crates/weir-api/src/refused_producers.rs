//! Producers whose events are refused: one line of the log a minute for each status, with the number of requests.
//!
//! Each refusal is answered with its reason, but a producer that drops the answer loses its events in silence.

use std::{collections::HashMap, time::Duration};

use http::StatusCode;
use parking_lot::Mutex;
use weir_core::Timestamp;

/// The time between two lines about one status.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Counts the refused requests of producers.
#[derive(Default)]
pub(crate) struct RefusedProducers(Mutex<HashMap<StatusCode, Refused>>);

#[derive(Debug, Clone, Copy)]
struct Refused {
    logged_at: Timestamp,
    /// Requests since then.
    requests: u64,
}

impl RefusedProducers {
    /// Notes an answer. Logs a refusal that is to be logged now.
    pub(crate) fn note(&self, route: &str, method: &str, status: StatusCode, now: Timestamp) {
        if method != "POST" || !matches!(route, "/v1/events" | "/v1/events/batch") {
            return;
        }
        let Some(why) = reason(status) else { return };
        if let Some(requests) = self.due(status, now) {
            tracing::warn!(status = status.as_u16(), requests, why, "producers are refused, and their events are lost");
        }
    }

    /// How many requests the line is about, if one is due.
    fn due(&self, status: StatusCode, now: Timestamp) -> Option<u64> {
        let mut refused = self.0.lock();
        let Some(of) = refused.get_mut(&status) else {
            refused.insert(status, Refused { logged_at: now, requests: 0 });
            return Some(1);
        };
        of.requests += 1;
        if now.since(of.logged_at) < LINE_EVERY {
            return None;
        }
        let requests = of.requests;
        *of = Refused { logged_at: now, requests: 0 };
        Some(requests)
    }
}

/// Why events are refused with this status. `None` for other statuses: those of an overload come from Weir itself and
/// are counted elsewhere.
fn reason(status: StatusCode) -> Option<&'static str> {
    Some(match status {
        StatusCode::UNAUTHORIZED => "the API key is missing or wrong",
        StatusCode::FORBIDDEN => "the API key may not post these events",
        StatusCode::MISDIRECTED_REQUEST => "the host of the request is not one that is served (WEIR_HOSTS)",
        StatusCode::UNPROCESSABLE_ENTITY => "the events are not valid",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_minute_counts_the_requests_since_the_last_one() {
        let refused = RefusedProducers::default();
        let at = |secs: i64| Timestamp::from_secs(1_000 + secs);
        assert_eq!(refused.due(StatusCode::UNAUTHORIZED, at(0)), Some(1));
        for secs in 1..60 {
            assert_eq!(refused.due(StatusCode::UNAUTHORIZED, at(secs)), None);
        }
        assert_eq!(refused.due(StatusCode::UNPROCESSABLE_ENTITY, at(30)), Some(1), "each status has a line of its own");
        assert_eq!(refused.due(StatusCode::UNAUTHORIZED, at(60)), Some(60));
        assert_eq!(refused.due(StatusCode::UNAUTHORIZED, at(600)), Some(1));
    }

    #[test]
    fn only_refusals_of_producers_are_lost_events() {
        let named = |status: u16| reason(StatusCode::from_u16(status).unwrap()).is_some();
        assert!([401, 403, 421, 422].into_iter().all(named) && ![202, 404, 429, 500, 503].into_iter().any(named));
    }
}
