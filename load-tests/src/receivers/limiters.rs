//! The limiters that the harness plays itself: those whose programs are no package here, and the exact moving window.
//! They only decide; `now` is an argument.

use std::{collections::VecDeque, time::Duration};

use super::case::Limit;

/// What a limiter does with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// 200, after this time.
    Accept { after: Duration },
    /// 429 with these headers.
    Refuse { headers: Vec<(&'static str, String)> },
}

const ACCEPT: Decision = Decision::Accept { after: Duration::ZERO };
const REFUSE: Decision = Decision::Refuse { headers: Vec::new() };

/// Times are those since the start of the harness.
pub(super) trait Limiter: Send {
    fn decide(&mut self, now: Duration) -> Decision;
}

/// A strict spacer: the generic cell rate algorithm with a burst of one. A request is accepted if the last accepted one
/// is at least one spacing old.
pub(super) struct Gcra {
    spacing: Duration,
    next: Duration,
}

impl Gcra {
    pub(super) fn new(limit: Limit) -> Self {
        Self { spacing: limit.spacing(), next: Duration::ZERO }
    }
}

impl Limiter for Gcra {
    fn decide(&mut self, now: Duration) -> Decision {
        if now < self.next {
            return REFUSE;
        }
        // The next cell follows the arrival, because no request was owed an earlier one.
        self.next = now + self.spacing;
        ACCEPT
    }
}

/// The middleware `rateLimit` of Traefik with its default burst of one: a request waits for its token if that takes at
/// most half a spacing, and at most half a second. Otherwise it is refused with whole seconds in `Retry-After` and the
/// exact time in `X-Retry-In`.
pub(super) struct Traefik {
    spacing: Duration,
    /// When the next token is there.
    token: Duration,
}

/// As in Traefik: longer waits would keep too many requests open.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

impl Traefik {
    pub(super) fn new(limit: Limit) -> Self {
        Self { spacing: limit.spacing(), token: Duration::ZERO }
    }
}

impl Limiter for Traefik {
    fn decide(&mut self, now: Duration) -> Decision {
        let after = self.token.saturating_sub(now);
        if after <= LONGEST_WAIT.min(self.spacing / 2) {
            self.token = self.token.max(now) + self.spacing;
            return Decision::Accept { after };
        }
        let headers = vec![
            ("retry-after", after.as_secs_f64().ceil().to_string()),
            ("x-retry-in", format!("{}ms", after.as_micros() as f64 / 1_000.0)),
        ];
        Decision::Refuse { headers }
    }
}

/// A moving window that keeps the time of every accepted request, as many libraries do on Redis. It is exact.
pub(super) struct MovingWindow {
    limit: Limit,
    accepted: VecDeque<Duration>,
}

impl MovingWindow {
    pub(super) fn new(limit: Limit) -> Self {
        Self { limit, accepted: VecDeque::new() }
    }
}

impl Limiter for MovingWindow {
    fn decide(&mut self, now: Duration) -> Decision {
        let is_old = |at: &Duration| now.saturating_sub(*at) >= self.limit.window();
        while self.accepted.front().is_some_and(is_old) {
            self.accepted.pop_front();
        }
        if self.accepted.len() >= self.limit.count as usize {
            return REFUSE;
        }
        self.accepted.push_back(now);
        ACCEPT
    }
}

/// A pool of workers that takes every request, and answers it when a worker has ended it.
pub(super) struct Pool {
    /// When each worker is free.
    free: [Duration; 5],
    /// How long a worker needs for a request.
    service: Duration,
}

impl Pool {
    /// As fast as this limit with all workers.
    pub(super) fn new(limit: Limit) -> Self {
        let free = [Duration::ZERO; 5];
        Self { free, service: limit.spacing() * free.len() as u32 }
    }
}

impl Limiter for Pool {
    fn decide(&mut self, now: Duration) -> Decision {
        let [first, ..] = &mut self.free;
        *first = now.max(*first) + self.service;
        let after = *first - now;
        // The worker that is free next comes first.
        self.free.sort_unstable();
        Decision::Accept { after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Limit = Limit::per_second(10);

    fn at(limiter: &mut dyn Limiter, ms: u64) -> Decision {
        limiter.decide(Duration::from_millis(ms))
    }

    #[test]
    fn a_strict_spacer_refuses_what_comes_one_millisecond_early() {
        let mut gcra = Gcra::new(TEN);
        let decisions = [1_000, 1_099, 1_100, 1_250, 1_349, 1_350].map(|ms| at(&mut gcra, ms));
        assert_eq!(decisions, [ACCEPT, REFUSE, ACCEPT, ACCEPT, REFUSE, ACCEPT]);
    }

    #[test]
    fn traefik_delays_by_at_most_half_a_spacing_and_says_when_the_token_comes() {
        let mut traefik = Traefik::new(TEN);
        assert_eq!(at(&mut traefik, 1_000), ACCEPT);
        assert_eq!(at(&mut traefik, 1_050), Decision::Accept { after: Duration::from_millis(50) });
        let headers = vec![("retry-after", "1".to_owned()), ("x-retry-in", "140ms".to_owned())];
        assert_eq!(at(&mut traefik, 1_060), Decision::Refuse { headers });
        // The refused request took no token.
        assert_eq!(at(&mut traefik, 1_200), ACCEPT);
    }

    #[test]
    fn a_pool_answers_later_while_all_its_workers_are_taken() {
        let mut pool = Pool::new(Limit::per_second(100));
        let after = |ms| Decision::Accept { after: Duration::from_millis(ms) };
        assert_eq!([0; 5].map(|ms| at(&mut pool, ms)), [0; 5].map(|_| after(50)));
        assert_eq!([0, 10, 200].map(|ms| at(&mut pool, ms)), [after(100), after(90), after(50)]);
    }

    #[test]
    fn a_moving_window_holds_no_more_than_the_limit_wherever_it_begins() {
        let mut window = MovingWindow::new(Limit::per_second(2));
        let decisions = [0, 900, 950, 1_000, 1_899, 1_900].map(|ms| at(&mut window, ms));
        assert_eq!(decisions, [ACCEPT, ACCEPT, REFUSE, ACCEPT, REFUSE, ACCEPT]);
    }
}
