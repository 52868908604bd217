//! Bounds how often somebody may try keys at the login.
//!
//! Keys that Weir makes cannot be guessed. Keys in the settings are chosen by people, and a login form is where people
//! and their password lists try. Requests with a bearer key are not counted: a wrong deployment of a producer would lock
//! out everybody else at its address.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use weir_core::Timestamp;

/// Failures are counted over a sliding minute: long enough to make guessing slow, short enough to wait for after
/// mistakes.
const WINDOW: Duration = Duration::from_secs(60);
/// The most failures of one address: more than a person makes in a minute.
const MAX_PER_ADDRESS: usize = 10;
/// The most failures of all addresses, because an attacker may have many. It bounds the memory, too.
const MAX_IN_ALL: usize = 100;

/// The address of a client, as a request extension from the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress(pub IpAddr);

/// The recent failed logins.
#[derive(Debug, Default)]
pub(super) struct LoginThrottle(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    /// Oldest first, as in each of the lists below.
    all: VecDeque<Timestamp>,
    by_address: HashMap<IpAddr, VecDeque<Timestamp>>,
}

impl LoginThrottle {
    /// Tries a login, and counts it if it fails (`None`). The error is how long the client must wait; then nothing was
    /// tried, so a correct guess stays unknown too.
    pub(super) fn attempt<T>(
        &self,
        address: IpAddr,
        now: Timestamp,
        log_in: impl FnOnce() -> Option<T>,
    ) -> Result<Option<T>, Duration> {
        // One lock for check and count, so that concurrent attempts cannot exceed the limit. The counts are complete
        // after each step, also after a panic.
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures.forget(now);
        let address = network(address);
        let own = failures.by_address.get(&address);
        let waits = [own.and_then(|own| wait(own, MAX_PER_ADDRESS, now)), wait(&failures.all, MAX_IN_ALL, now)];
        if let Some(longest) = waits.into_iter().flatten().max() {
            return Err(longest);
        }
        let admitted = log_in();
        if admitted.is_none() {
            failures.all.push_back(now);
            failures.by_address.entry(address).or_default().push_back(now);
        }
        Ok(admitted)
    }
}

impl Failures {
    fn forget(&mut self, now: Timestamp) {
        let forget = |times: &mut VecDeque<Timestamp>| {
            while times.front().is_some_and(|at| now.since(*at) >= WINDOW) {
                times.pop_front();
            }
        };
        forget(&mut self.all);
        self.by_address.retain(|_, times| {
            forget(times);
            !times.is_empty()
        });
    }
}

/// How long until there are fewer than `most` failures; `None` if there are fewer already.
fn wait(times: &VecDeque<Timestamp>, most: usize, now: Timestamp) -> Option<Duration> {
    let oldest = *times.get(times.len().checked_sub(most)?)?;
    Some((oldest + WINDOW).since(now))
}

/// What counts as one address. A client on IPv6 usually has a whole /64 network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn at(seconds: u64) -> Timestamp {
        START + Duration::from_secs(seconds)
    }

    fn fail(throttle: &LoginThrottle, address: &str, now: Timestamp) -> Result<Option<()>, Duration> {
        throttle.attempt(address.parse().unwrap(), now, || None)
    }

    #[test]
    fn ten_failures_of_an_address_in_any_minute_refuse_even_a_correct_key() {
        let throttle = LoginThrottle::default();
        for second in 0..10 {
            assert_eq!(fail(&throttle, "192.0.2.1", at(second)), Ok(None));
        }
        let tried = throttle.attempt("192.0.2.1".parse().unwrap(), at(10), || Some(()));
        assert_eq!(tried, Err(Duration::from_secs(50)));
        // Other addresses may log in. This address gets one more attempt for each of its attempts that is a minute old.
        assert_eq!(throttle.attempt("192.0.2.2".parse().unwrap(), at(10), || Some(())), Ok(Some(())));
        assert_eq!(fail(&throttle, "192.0.2.1", at(59)), Err(Duration::from_secs(1)));
        assert_eq!(fail(&throttle, "192.0.2.1", at(60)), Ok(None));
        assert_eq!(fail(&throttle, "192.0.2.1", at(60)), Err(Duration::from_secs(1)));
    }

    #[test]
    fn successes_are_not_counted() {
        let throttle = LoginThrottle::default();
        for _ in 0..1_000 {
            assert_eq!(throttle.attempt("192.0.2.1".parse().unwrap(), START, || Some(1)), Ok(Some(1)));
        }
    }

    #[test]
    fn an_attacker_with_many_addresses_is_bounded_in_attempts_and_memory() {
        let throttle = LoginThrottle::default();
        let admitted =
            (0..10_000).filter(|n| fail(&throttle, &format!("192.0.{}.{}", n / 250, n % 250), START).is_ok());
        assert_eq!(admitted.count(), MAX_IN_ALL);
        assert_eq!(throttle.0.lock().unwrap().by_address.len(), MAX_IN_ALL);
        assert_eq!(fail(&throttle, "198.51.100.1", at(59)), Err(Duration::from_secs(1)));
        assert_eq!(fail(&throttle, "198.51.100.1", at(60)), Ok(None));
        assert_eq!(throttle.0.lock().unwrap().by_address.len(), 1, "old failures are forgotten");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address_and_a_mapped_address_as_ipv4() {
        let throttle = LoginThrottle::default();
        let failed = (0..20).filter(|n| fail(&throttle, &format!("2001:db8::{n}"), START).is_ok()).count();
        assert_eq!(failed, MAX_PER_ADDRESS);
        assert_eq!(fail(&throttle, "2001:db8:0:1::1", START), Ok(None));
        let failed = (0..20).filter(|_| fail(&throttle, "::ffff:192.0.2.1", START).is_ok()).count();
        assert_eq!((failed, fail(&throttle, "192.0.2.1", START).is_ok()), (MAX_PER_ADDRESS, false));
    }
}
