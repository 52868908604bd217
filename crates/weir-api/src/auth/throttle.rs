//! Throttles those who try wrong keys, at the login and in `Authorization`.
//!
//! A right key is always accepted, however many wrong ones came before it: otherwise anybody behind the same proxy could
//! lock out everybody else, and so could a producer with a deleted key. So the throttle does not make guessing
//! impossible. The length of the keys does: Weir makes keys of 256 bits, and refuses short ones in the settings. The
//! throttle makes clients with a wrong key slow down, and bounds what they write to the log.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use parking_lot::Mutex;
use weir_core::Timestamp;

use super::digest::digest;

/// Failures are counted over a sliding minute: long enough to make guessing slow, short enough to wait for after
/// mistakes.
const WINDOW: Duration = Duration::from_secs(60);
/// The most failures of one address: more than a person makes in a minute.
const MAX_PER_ADDRESS: usize = 10;
/// The most failures of keys that begin alike, from whatever addresses: somebody who knows the beginning of a key may
/// have many addresses.
const MAX_PER_PREFIX: usize = 10;
/// The most failures of all. It bounds the memory and the log, too.
const MAX_IN_ALL: usize = 100;
/// The characters by which keys begin alike: `wk_` and 30 random bits of those that Weir makes.
const PREFIX_CHARS: usize = 8;

/// The recent failures.
#[derive(Debug, Default)]
pub(super) struct Throttle(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    /// Oldest first, as in each of the lists below.
    all: VecDeque<Timestamp>,
    by_address: HashMap<IpAddr, VecDeque<Timestamp>>,
    by_prefix: HashMap<Prefix, VecDeque<Timestamp>>,
    /// When a refused failure was last reported.
    reported_at: Option<Timestamp>,
}

/// The beginning of a key, as a part of its digest: no part of a key stays in memory.
type Prefix = [u8; 8];

/// A failure beyond the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany {
    /// How long until a failure is within the limits again.
    pub(super) wait: Duration,
    /// Whether to write it to the log: once in a minute.
    pub(super) is_reported: bool,
}

impl Throttle {
    /// Counts a failure with this key, unless there were too many already.
    pub(super) fn failed(&self, address: IpAddr, key: &str, now: Timestamp) -> Result<(), TooMany> {
        // One lock for check and count, so that concurrent attempts cannot exceed the limits.
        let mut failures = self.0.lock();
        failures.forget(now);
        let (address, prefix) = (network(address), prefix(key));
        let waits = [
            failures.by_address.get(&address).and_then(|own| wait(own, MAX_PER_ADDRESS, now)),
            failures.by_prefix.get(&prefix).and_then(|own| wait(own, MAX_PER_PREFIX, now)),
            wait(&failures.all, MAX_IN_ALL, now),
        ];
        if let Some(wait) = waits.into_iter().flatten().max() {
            let is_reported = failures.reported_at.is_none_or(|at| now.since(at) >= WINDOW);
            if is_reported {
                failures.reported_at = Some(now);
            }
            return Err(TooMany { wait, is_reported });
        }
        failures.all.push_back(now);
        failures.by_address.entry(address).or_default().push_back(now);
        failures.by_prefix.entry(prefix).or_default().push_back(now);
        Ok(())
    }
}

impl Failures {
    fn forget(&mut self, now: Timestamp) {
        forget(&mut self.all, now);
        forget_in(&mut self.by_address, now);
        forget_in(&mut self.by_prefix, now);
    }
}

fn forget(times: &mut VecDeque<Timestamp>, now: Timestamp) {
    while times.front().is_some_and(|at| now.since(*at) >= WINDOW) {
        times.pop_front();
    }
}

fn forget_in<K: Eq + Hash>(lists: &mut HashMap<K, VecDeque<Timestamp>>, now: Timestamp) {
    lists.retain(|_, times| {
        forget(times, now);
        !times.is_empty()
    });
}

/// How long until there are fewer than `most` failures; `None` if there are fewer already.
fn wait(times: &VecDeque<Timestamp>, most: usize, now: Timestamp) -> Option<Duration> {
    let oldest = *times.get(times.len().checked_sub(most)?)?;
    Some((oldest + WINDOW).since(now))
}

fn prefix(key: &str) -> Prefix {
    let start: String = key.chars().take(PREFIX_CHARS).collect();
    let mut prefix = Prefix::default();
    prefix.copy_from_slice(&digest(&start)[..size_of::<Prefix>()]);
    prefix
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

    /// A failure with a key that begins like no other: how long to wait.
    fn fail(throttle: &Throttle, address: &str, now: Timestamp) -> Result<(), Duration> {
        fail_with(throttle, address, &format!("{}-{address}", now.as_secs() % 1_000), now)
    }

    fn fail_with(throttle: &Throttle, address: &str, key: &str, now: Timestamp) -> Result<(), Duration> {
        throttle.failed(address.parse().unwrap(), key, now).map_err(|too_many| too_many.wait)
    }

    #[test]
    fn an_address_has_ten_failures_in_any_minute() {
        let throttle = Throttle::default();
        for second in 0..10 {
            assert_eq!(fail(&throttle, "192.0.2.1", at(second)), Ok(()));
        }
        assert_eq!(fail(&throttle, "192.0.2.1", at(10)), Err(Duration::from_secs(50)));
        // This address gets one more failure for each of its failures that is a minute old. Others are not affected.
        assert_eq!(fail(&throttle, "192.0.2.2", at(10)), Ok(()));
        assert_eq!(fail(&throttle, "192.0.2.1", at(59)), Err(Duration::from_secs(1)));
        assert_eq!(fail(&throttle, "192.0.2.1", at(60)), Ok(()));
        assert_eq!(fail(&throttle, "192.0.2.1", at(60)), Err(Duration::from_secs(1)));
    }

    #[test]
    fn keys_that_begin_alike_are_counted_together_from_all_addresses() {
        let throttle = Throttle::default();
        let failed =
            (0..50).filter(|n| fail_with(&throttle, &format!("192.0.2.{n}"), &format!("wk_8qWz1{n}"), START).is_ok());
        assert_eq!(failed.count(), MAX_PER_PREFIX);
        assert_eq!(fail_with(&throttle, "192.0.2.60", "wk_another", START), Ok(()));
        assert_eq!(fail_with(&throttle, "192.0.2.61", "ü", START), Ok(()));
    }

    #[test]
    fn an_attacker_with_many_addresses_is_bounded_in_attempts_memory_and_lines_of_the_log() {
        let throttle = Throttle::default();
        let (mut admitted, mut reported) = (0, 0);
        for n in 0..10_000 {
            match throttle.failed(format!("192.0.{}.{}", n / 250, n % 250).parse().unwrap(), &n.to_string(), START) {
                Ok(()) => admitted += 1,
                Err(too_many) => reported += u32::from(too_many.is_reported),
            }
        }
        assert_eq!((admitted, reported), (MAX_IN_ALL, 1));
        {
            let failures = throttle.0.lock();
            assert_eq!((failures.by_address.len(), failures.by_prefix.len()), (MAX_IN_ALL, MAX_IN_ALL));
        }
        assert_eq!(fail(&throttle, "198.51.100.1", at(59)), Err(Duration::from_secs(1)));
        assert_eq!(fail(&throttle, "198.51.100.1", at(60)), Ok(()));
        let failures = throttle.0.lock();
        assert_eq!((failures.by_address.len(), failures.by_prefix.len()), (1, 1), "old failures are forgotten");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address_and_a_mapped_address_as_ipv4() {
        let throttle = Throttle::default();
        let fail = |address: &str, n: usize| fail_with(&throttle, address, &format!("{n} is a key"), START);
        let failed = (0..20).filter(|n| fail(&format!("2001:db8::{n}"), *n).is_ok()).count();
        assert_eq!(failed, MAX_PER_ADDRESS);
        assert_eq!(fail("2001:db8:0:1::1", 20), Ok(()));
        let failed = (21..40).filter(|n| fail("::ffff:192.0.2.1", *n).is_ok()).count();
        assert_eq!((failed, fail("192.0.2.1", 40).is_ok()), (MAX_PER_ADDRESS, false));
    }
}
