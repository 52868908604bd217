//! The addresses of names: one look-up at a time for each name, cached for the TTL of its records.
//!
//! A look-up runs in a separate task with its own time limit: a name whose servers do not answer delays only dials to
//! that name. The cache holds addresses, not permissions: each dial checks them against the policy again.

mod system;

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};

use super::fault::{NoConnection, Unreachable};
use weir_core::outcome::Failure;

pub(super) use system::{NameServers, SystemNames};

/// The time limit for one name, with all retries and search domains. Shorter than the connect budget, so that the error
/// names DNS.
const LOOKUP_BUDGET: Duration = Duration::from_secs(5);
/// The minimum TTL: with less, a busy destination would need a look-up for each dial.
const MIN_TTL: Duration = Duration::from_secs(1);
/// The maximum TTL: together with the maximum age of connections it bounds the delay of a failover by DNS.
const MAX_TTL: Duration = Duration::from_secs(300);
/// How long a failure is cached: shorter than any backoff, and long enough that many dials to a failing name cause one
/// look-up.
const FAILURE_TTL: Duration = Duration::from_secs(5);
/// The most look-ups at one time. Each uses up to two sockets per name server, so 512 use one to two thousand sockets.
/// A further look-up waits, at most as long as its dial waits.
const MAX_LOOKUPS: usize = 512;
/// How many names are cached: more than the origins that a worker has connections to. An entry takes a few hundred
/// bytes.
const MAX_NAMES: usize = 16_384;

/// Looks up names.
pub(super) trait Lookup: Send + Sync + 'static {
    fn lookup(&self, name: Arc<str>) -> BoxFuture<'static, Result<Resolution, NoAddress>>;
}

/// The result of a look-up.
#[derive(Debug, Clone)]
pub(super) struct Resolution {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ttl: Duration,
}

/// Why there is no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoAddress {
    /// The servers answered that there is none.
    None,
    /// The servers answered with an error.
    Failed,
    /// The servers did not answer.
    Timeout,
    /// This process or machine has no resources left for a look-up.
    Exhausted(NoConnection),
}

impl NoAddress {
    pub(super) fn into_error(self, name: &str) -> NoConnection {
        let text = match self {
            Self::None => format!("no address found for {name}"),
            Self::Failed => format!("the name servers failed for {name}"),
            Self::Timeout => format!("the name servers did not answer for {name}"),
            Self::Exhausted(exhausted) => return exhausted,
        };
        Unreachable::new(Failure::Dns, text).into()
    }
}

type Answer = Result<Arc<[IpAddr]>, NoAddress>;

/// The names that are cached or being looked up.
pub(super) struct Names {
    lookup: Box<dyn Lookup>,
    known: Mutex<HashMap<Arc<str>, watch::Receiver<Option<CachedAnswer>>>>,
    running: Semaphore,
}

#[derive(Clone)]
struct CachedAnswer {
    answer: Answer,
    until: Instant,
}

impl Names {
    pub(super) fn new(lookup: impl Lookup) -> Arc<Self> {
        let running = Semaphore::new(MAX_LOOKUPS);
        Arc::new(Self { lookup: Box::new(lookup), known: Mutex::default(), running })
    }

    /// The addresses of a name, at least one.
    pub(super) async fn addresses(self: &Arc<Self>, name: &str) -> Answer {
        let mut known = self.known_or_started(name);
        match known.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(known)) => known.answer.clone(),
            _ => Err(NoAddress::Failed),
        }
    }

    fn known_or_started(self: &Arc<Self>, name: &str) -> watch::Receiver<Option<CachedAnswer>> {
        let now = Instant::now();
        let mut known = self.known.lock();
        // Share a current answer, or the look-up under way.
        if let Some(entry) = known.get(name).filter(|entry| is_current(entry, now)) {
            return entry.clone();
        }
        // Make room: outdated answers first, or else all of them.
        if known.len() >= MAX_NAMES {
            known.retain(|_, entry| is_current(entry, now));
        }
        if known.len() >= MAX_NAMES {
            // Names are looked up again when they are needed. Look-ups under way continue for their waiters.
            known.clear();
        }
        // Look up in a task of its own, which continues for the other waiters when one gives up.
        let (sender, entry) = watch::channel(None);
        let name: Arc<str> = name.into();
        known.insert(name.clone(), entry.clone());
        let names = self.clone();
        tokio::spawn(async move {
            sender.send_replace(Some(names.look_up(name).await));
        });
        entry
    }

    async fn look_up(&self, name: Arc<str>) -> CachedAnswer {
        // The semaphore is never closed.
        let _running = self.running.acquire().await;
        let found = match timeout(LOOKUP_BUDGET, self.lookup.lookup(name)).await {
            Ok(Ok(found)) if found.addresses.is_empty() => Err(NoAddress::None),
            Ok(found) => found,
            Err(_) => Err(NoAddress::Timeout),
        };
        let (answer, ttl) = match found {
            Ok(Resolution { addresses, ttl }) => (Ok(addresses.into()), ttl.clamp(MIN_TTL, MAX_TTL)),
            // The process had no resources for the look-up, such as a free file descriptor. This says nothing about the
            // name, so the failure is not cached.
            Err(exhausted @ NoAddress::Exhausted(_)) => (Err(exhausted), Duration::ZERO),
            Err(failed) => (Err(failed), FAILURE_TTL),
        };
        CachedAnswer { answer, until: Instant::now() + ttl }
    }
}

/// Whether the look-up is under way, or its answer is not too old.
fn is_current(entry: &watch::Receiver<Option<CachedAnswer>>, now: Instant) -> bool {
    match &*entry.borrow() {
        Some(known) => now < known.until,
        // The sender is dropped if the task has panicked.
        None => entry.has_changed().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::{FutureExt, future::join_all};
    use tokio::time::{advance, sleep};

    use super::*;

    /// Answers each look-up with the next scripted answer, after a delay, and counts look-ups by name.
    #[derive(Clone, Default)]
    struct Scripted {
        answers: Arc<Mutex<VecDeque<Result<Resolution, NoAddress>>>>,
        asked: Arc<Mutex<HashMap<Arc<str>, usize>>>,
        delay: Duration,
    }

    impl Scripted {
        fn new(answers: impl IntoIterator<Item = Result<Resolution, NoAddress>>) -> Self {
            Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() }
        }

        fn asked(&self, name: &str) -> usize {
            self.asked.lock().get(name).copied().unwrap_or(0)
        }
    }

    impl Lookup for Scripted {
        fn lookup(&self, name: Arc<str>) -> BoxFuture<'static, Result<Resolution, NoAddress>> {
            *self.asked.lock().entry(name.clone()).or_default() += 1;
            let (answers, delay) = (self.answers.clone(), self.delay);
            async move {
                if name.ends_with(".silent.example") {
                    return std::future::pending().await;
                }
                sleep(delay).await;
                answers.lock().pop_front().unwrap_or_else(|| found(9, 60))
            }
            .boxed()
        }
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn found(last: u8, ttl: u64) -> Result<Resolution, NoAddress> {
        Ok(Resolution { addresses: vec![address(last)], ttl: Duration::from_secs(ttl) })
    }

    async fn last(names: &Arc<Names>) -> IpAddr {
        names.addresses("a.example").await.unwrap()[0]
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_for_a_name_share_one_look_up() {
        let script = Scripted { delay: Duration::from_secs(1), ..Scripted::default() };
        let names = Names::new(script.clone());
        let answers = join_all((0..1_000).map(|_| names.addresses("a.example"))).await;
        assert!(answers.iter().all(|answer| answer.as_deref() == Ok(&[address(9)])));
        assert_eq!(script.asked("a.example"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_cached_for_their_ttl_within_bounds() {
        for (ttl, kept) in [(0, 1), (30, 30), (86_400, 300)] {
            let names = Names::new(Scripted::new([found(1, ttl), found(2, ttl)]));
            assert_eq!(last(&names).await, address(1));
            advance(Duration::from_secs(kept) - Duration::from_millis(1)).await;
            assert_eq!(last(&names).await, address(1), "{ttl}");
            advance(Duration::from_millis(2)).await;
            assert_eq!(last(&names).await, address(2), "{ttl}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_cached_for_five_seconds() {
        let nothing = Ok(Resolution { addresses: Vec::new(), ttl: MAX_TTL });
        for failure in [nothing, Err(NoAddress::None), Err(NoAddress::Failed)] {
            let script = Scripted::new([failure]);
            let names = Names::new(script.clone());
            for _ in 0..10 {
                assert!(names.addresses("a.example").await.is_err());
            }
            assert_eq!(script.asked("a.example"), 1);
            advance(FAILURE_TTL).await;
            assert_eq!(last(&names).await, address(9));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lack_of_files_is_not_cached() {
        let exhausted = NoAddress::Exhausted(NoConnection::Exhausted("no more files"));
        let names = Names::new(Scripted::new([Err(exhausted.clone())]));
        assert_eq!(names.addresses("a.example").await, Err(exhausted));
        assert_eq!(last(&names).await, address(9));
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_names_delay_no_other_name() {
        let names = Names::new(Scripted::default());
        let silent: Vec<_> = (0..500).map(|number| format!("{number}.silent.example")).collect();
        let silent = join_all(silent.iter().map(|name| names.addresses(name)));
        let began = Instant::now();
        let neighbour = async {
            assert_eq!(last(&names).await, address(9));
            assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
        };
        let (silent, ()) = tokio::join!(silent, neighbour);
        assert!(silent.iter().all(|answer| *answer == Err(NoAddress::Timeout)));
        assert_eq!(began.elapsed().as_secs(), LOOKUP_BUDGET.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_look_ups_are_bounded_and_waiting_ones_run_later() {
        let names = Names::new(Scripted::default());
        let silent: Vec<_> = (0..MAX_LOOKUPS).map(|number| format!("{number}.silent.example")).collect();
        let silent = join_all(silent.iter().map(|name| names.addresses(name)));
        let neighbour = async {
            tokio::task::yield_now().await;
            last(&names).await
        };
        let began = Instant::now();
        let (_, neighbour) = tokio::join!(silent, neighbour);
        assert_eq!(neighbour, address(9));
        assert_eq!(began.elapsed().as_secs(), LOOKUP_BUDGET.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_bounded_number_of_names_is_cached() {
        let names = Names::new(Scripted::default());
        for number in 0..=MAX_NAMES {
            names.addresses(&format!("{number}.example")).await.unwrap();
        }
        assert!(names.known.lock().len() <= MAX_NAMES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_up_continues_for_others_when_one_waiter_gives_up() {
        let script = Scripted { delay: Duration::from_secs(2), ..Scripted::default() };
        let names = Names::new(script.clone());
        assert!(timeout(Duration::from_secs(1), names.addresses("a.example")).await.is_err());
        assert_eq!(last(&names).await, address(9));
        assert_eq!(script.asked("a.example"), 1);
    }
}
