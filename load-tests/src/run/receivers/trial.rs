//! A receiver of the trials of adaptive rate, which are played in virtual time elsewhere, on real sockets: it decides by
//! the kernel's times of arrival, and waits as long as the answer takes.

use std::{sync::OnceLock, time::Duration};

use parking_lot::Mutex;
use weir_core::Timestamp;
use weir_pace_trials::{
    receiver::{Ending, Receiver, Reply, Server},
    rng::Rng,
};

use super::behaviors::Answer;

/// When the trials of a run begin. Until then their capacity is that of the first second.
pub(crate) type Began = std::sync::Arc<OnceLock<Timestamp>>;

pub(crate) struct Trial {
    began: Began,
    state: Mutex<State>,
}

struct State {
    receiver: Receiver,
    rng: Rng,
    /// The time of the last request: two connections may be read in another order than that of their arrivals.
    latest_s: f64,
}

impl Trial {
    pub(crate) fn new(receiver: Receiver, seed: u64, began: Began) -> Self {
        Self { began, state: Mutex::new(State { receiver, rng: Rng::new(seed), latest_s: 0.0 }) }
    }

    /// The answer to a request that arrived at `at` and is read now.
    pub(super) fn answer(&self, at: Timestamp, now: Timestamp) -> Answer {
        let began = *self.began.get().unwrap_or(&at);
        let seconds = |at: Timestamp| at.since(began).as_secs_f64();
        let state = &mut *self.state.lock();
        state.latest_s = state.latest_s.max(seconds(at));
        let Reply { at: until, ending, retry_after, quota } = state.receiver.take(state.latest_s, &mut state.rng);
        Answer {
            after: Duration::from_secs_f64((until - seconds(now)).max(0.0)),
            status: match ending {
                Ending::Taken => 200,
                Ending::Refused => 429,
                Ending::Failed => 503,
                Ending::Broken => 500,
            },
            retry_after_s: retry_after.map(|wait| wait.ceil() as u64),
            quota: quota.map(|(remaining, reset)| (remaining, (reset - until).max(0.0).ceil() as u64)),
            drip: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_pace_trials::receiver::{Gate, Steps};

    use super::*;

    #[test]
    fn a_trial_answers_as_in_virtual_time_from_its_beginning_on() {
        let gate = Gate::Fixed { seconds: 10.0, used: (-1.0, 0) };
        let receiver = Receiver::new(gate, Steps::always(0.2));
        let receiver = Receiver { says_quota: true, says_retry_after: true, sigma: 0.0, ..receiver };
        let at = |ms: i64| Timestamp::from_millis(1_000 + ms);
        let trial = Trial::new(receiver, 1, OnceLock::from(at(0)).into());
        let first = trial.answer(at(0), at(5));
        // 50 ms of work and 10 ms each way, of which five have passed.
        assert_eq!((first.status, first.after.as_micros().div_ceil(1_000), first.quota), (200, 65, Some((1, 10))));
        assert_eq!(trial.answer(at(1_000), at(1_000)).status, 200);
        // It arrived before the second and is read after it.
        let third = trial.answer(at(900), at(1_000));
        assert_eq!((third.status, third.retry_after_s, third.quota.map(|(left, _)| left)), (429, Some(9), Some(0)));
    }
}
