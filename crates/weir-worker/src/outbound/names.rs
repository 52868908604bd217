//! The addresses of names: one look-up for each name at a time, kept for as long as its records say.
//!
//! A look-up runs in a task of its own, within a budget of its own: a name whose servers do not answer holds up whoever asks for
//! it, and nobody else. What is kept here is addresses, not permissions: whoever dials judges each of them each time.

mod system;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};

use super::fault::{NoConnection, Unreachable};
use weir_core::outcome::Failure;

pub(super) use system::{NameServers, SystemNames};

/// For one name, with every repetition and search domain. Within the connect budget, so that the reason is told.
const LOOKUP_BUDGET: Duration = Duration::from_secs(5);
/// Records that say less are kept so long all the same: a busy destination would be looked up with each dial.
const MIN_TTL: Duration = Duration::from_secs(1);
/// Records that say more are asked for again: together with the age of connections it bounds how late a failover is followed.
const MAX_TTL: Duration = Duration::from_secs(300);
/// How long a failure is kept: short beside any backoff, and enough that a name that fails is asked for by one dial of many.
const FAILURE_TTL: Duration = Duration::from_secs(5);
/// Look-ups under way. Each holds up to two sockets a name server; more wait for their turn, as long as their dials do.
const MAX_LOOKUPS: usize = 512;
/// Names that are kept.
const MAX_NAMES: usize = 16_384;

/// Where names are looked up.
pub(super) trait Lookup: Send + Sync + 'static {
    fn lookup(&self, name: Arc<str>) -> BoxFuture<'static, Result<Resolution, NoAddress>>;
}

/// What a look-up finds.
#[derive(Debug, Clone)]
pub(super) struct Resolution {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ttl: Duration,
}

/// Why there is no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoAddress {
    /// The servers say that there is none.
    None,
    /// The servers could not say.
    Failed,
    /// The servers do not answer.
    Late,
    /// Nothing is left to ask with.
    Exhausted(NoConnection),
}

impl NoAddress {
    pub(super) fn of(self, name: &str) -> NoConnection {
        let text = match self {
            Self::None => format!("no address found for {name}"),
            Self::Failed => format!("the name servers failed for {name}"),
            Self::Late => format!("the name servers did not answer for {name}"),
            Self::Exhausted(exhausted) => return exhausted,
        };
        Unreachable::new(Failure::Dns, text).into()
    }
}

type Answer = Result<Arc<[IpAddr]>, NoAddress>;

/// The names that are known or being looked up.
pub(super) struct Names {
    lookup: Box<dyn Lookup>,
    known: Mutex<HashMap<Arc<str>, watch::Receiver<Option<Known>>>>,
    places: Semaphore,
}

#[derive(Clone)]
struct Known {
    answer: Answer,
    until: Instant,
}

impl Names {
    pub(super) fn new(lookup: impl Lookup) -> Arc<Self> {
        let places = Semaphore::new(MAX_LOOKUPS);
        Arc::new(Self { lookup: Box::new(lookup), known: Mutex::default(), places })
    }

    /// The addresses of a name, at least one.
    pub(super) async fn addresses(self: &Arc<Self>, name: &str) -> Answer {
        let mut known = self.known_or_asked(name);
        match known.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(known)) => known.answer.clone(),
            _ => Err(NoAddress::Failed),
        }
    }

    fn known_or_asked(self: &Arc<Self>, name: &str) -> watch::Receiver<Option<Known>> {
        let now = Instant::now();
        let mut known = self.lock();
        if let Some(entry) = known.get(name).filter(|entry| is_current(entry, now)) {
            return entry.clone();
        }
        if known.len() >= MAX_NAMES {
            known.retain(|_, entry| is_current(entry, now));
        }
        if known.len() >= MAX_NAMES {
            // Asked for anew when they are needed; what is under way goes on for those who wait for it.
            known.clear();
        }
        let (told, entry) = watch::channel(None);
        let name: Arc<str> = name.into();
        known.insert(name.clone(), entry.clone());
        let names = self.clone();
        tokio::spawn(async move {
            told.send_replace(Some(names.ask(name).await));
        });
        entry
    }

    async fn ask(&self, name: Arc<str>) -> Known {
        // Nobody closes it.
        let _place = self.places.acquire().await;
        let found = match timeout(LOOKUP_BUDGET, self.lookup.lookup(name)).await {
            Ok(Ok(found)) if found.addresses.is_empty() => Err(NoAddress::None),
            Ok(found) => found,
            Err(_) => Err(NoAddress::Late),
        };
        let (answer, ttl) = match found {
            Ok(Resolution { addresses, ttl }) => (Ok(addresses.into()), ttl.clamp(MIN_TTL, MAX_TTL)),
            Err(exhausted @ NoAddress::Exhausted(_)) => (Err(exhausted), Duration::ZERO),
            Err(failed) => (Err(failed), FAILURE_TTL),
        };
        Known { answer, until: Instant::now() + ttl }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, watch::Receiver<Option<Known>>>> {
        // Nobody panics with the lock held.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Under way, or known and not too old.
fn is_current(entry: &watch::Receiver<Option<Known>>, now: Instant) -> bool {
    match &*entry.borrow() {
        Some(known) => now < known.until,
        // Its task is gone when it has panicked.
        None => entry.has_changed().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::{FutureExt, future::join_all};
    use tokio::time::{advance, sleep};

    use super::*;

    /// Answers each look-up with the next of these, after a delay; counts them by name.
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
            self.asked.lock().unwrap().get(name).copied().unwrap_or(0)
        }
    }

    impl Lookup for Scripted {
        fn lookup(&self, name: Arc<str>) -> BoxFuture<'static, Result<Resolution, NoAddress>> {
            *self.asked.lock().unwrap().entry(name.clone()).or_default() += 1;
            let (answers, delay) = (self.answers.clone(), self.delay);
            async move {
                if name.ends_with(".silent.example") {
                    return std::future::pending().await;
                }
                sleep(delay).await;
                answers.lock().unwrap().pop_front().unwrap_or_else(|| found(9, 60))
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
    async fn a_name_is_looked_up_once_however_many_ask() {
        let script = Scripted { delay: Duration::from_secs(1), ..Scripted::default() };
        let names = Names::new(script.clone());
        let answers = join_all((0..1_000).map(|_| names.addresses("a.example"))).await;
        assert!(answers.iter().all(|answer| answer.as_deref() == Ok(&[address(9)])));
        assert_eq!(script.asked("a.example"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_kept_as_long_as_their_records_say_within_bounds() {
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
    async fn a_failure_is_kept_for_five_seconds() {
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
    async fn a_lack_of_files_is_not_kept() {
        let exhausted = NoAddress::Exhausted(NoConnection::Exhausted("no more files"));
        let names = Names::new(Scripted::new([Err(exhausted.clone())]));
        assert_eq!(names.addresses("a.example").await, Err(exhausted));
        assert_eq!(last(&names).await, address(9));
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_are_not_answered_stop_nobody_else() {
        let names = Names::new(Scripted::default());
        let silent: Vec<_> = (0..500).map(|number| format!("{number}.silent.example")).collect();
        let silent = join_all(silent.iter().map(|name| names.addresses(name)));
        let began = Instant::now();
        let neighbour = async {
            assert_eq!(last(&names).await, address(9));
            assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
        };
        let (silent, ()) = tokio::join!(silent, neighbour);
        assert!(silent.iter().all(|answer| *answer == Err(NoAddress::Late)));
        assert_eq!(began.elapsed().as_secs(), LOOKUP_BUDGET.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn look_ups_under_way_are_bounded_and_each_has_its_turn() {
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
    async fn a_bounded_number_of_names_is_kept() {
        let names = Names::new(Scripted::default());
        for number in 0..=MAX_NAMES {
            names.addresses(&format!("{number}.example")).await.unwrap();
        }
        assert!(names.lock().len() <= MAX_NAMES);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gives_up_leaves_the_look_up_to_the_others() {
        let script = Scripted { delay: Duration::from_secs(2), ..Scripted::default() };
        let names = Names::new(script.clone());
        assert!(timeout(Duration::from_secs(1), names.addresses("a.example")).await.is_err());
        assert_eq!(last(&names).await, address(9));
        assert_eq!(script.asked("a.example"), 1);
    }
}
