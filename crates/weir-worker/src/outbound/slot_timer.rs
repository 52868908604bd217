//! Wakes a task at an instant, to about a tenth of a millisecond.
//!
//! tokio's timer counts in whole milliseconds and wakes up to two of them late. A slot of a short minimum interval is
//! 1.5 ms wide, so it would be over. A thread of its own waits for the starts of such slots; the first of them starts
//! it.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    thread::{self, Thread},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

/// The starts of narrower slots are waited for here: where two milliseconds are a large part of the slot. For wider ones
/// tokio's timer is good enough, and costs no switch of threads. The slots of an adaptive rate are waited for here, too.
pub(super) const NARROW: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct SlotTimer {
    wakes: Arc<Wakes>,
    /// `None` inside: no thread could be started.
    thread: OnceLock<Option<Thread>>,
}

#[derive(Default)]
struct Wakes(Mutex<Waiting>);

/// At most one entry for each permit with a slot: slots are granted 40 ms ahead at most, and each entry leaves at its
/// instant.
#[derive(Default)]
struct Waiting {
    by_time: BTreeMap<(Instant, u64), oneshot::Sender<()>>,
    added: u64,
    stopped: bool,
}

impl SlotTimer {
    /// Waits until `at`, and never less.
    pub(super) async fn wait_until(&self, at: Instant) {
        let Some(thread) = self.thread.get_or_init(|| start(self.wakes.clone())) else {
            sleep_until(at).await;
            return;
        };
        let (wake, woken) = oneshot::channel();
        if self.wakes.add(at, wake) {
            thread.unpark();
        }
        // The thread does not end before this timer is dropped.
        let _ = woken.await;
    }
}

impl Drop for SlotTimer {
    fn drop(&mut self) {
        if let Some(Some(thread)) = self.thread.get() {
            self.wakes.0.lock().stopped = true;
            thread.unpark();
        }
    }
}

impl Wakes {
    /// Returns whether this is the earliest instant, so that the thread must not sleep longer.
    fn add(&self, at: Instant, wake: oneshot::Sender<()>) -> bool {
        let mut waiting = self.0.lock();
        waiting.added += 1;
        let place = (at, waiting.added);
        waiting.by_time.insert(place, wake);
        waiting.by_time.first_key_value().is_some_and(|(first, _)| *first == place)
    }

    /// Wakes who waits for `now` or an earlier instant. Returns how long to sleep, or `None` at the end.
    fn wake_due(&self, now: Instant) -> Option<Duration> {
        let mut waiting = self.0.lock();
        while let Some(first) = waiting.by_time.first_entry().filter(|first| first.key().0 <= now) {
            // Who does not wait any more was cancelled.
            let _ = first.remove().send(());
        }
        let next = waiting.by_time.first_key_value().map_or(Duration::MAX, |((at, _), _)| at.duration_since(now));
        (!waiting.stopped).then_some(next)
    }
}

/// The thread sleeps until the earliest instant, or until an earlier one is added.
fn start(wakes: Arc<Wakes>) -> Option<Thread> {
    let run = move || {
        while let Some(sleep) = wakes.wake_due(Instant::now()) {
            thread::park_timeout(sleep);
        }
    };
    let started = thread::Builder::new().name("weir-slots".to_owned()).spawn(run);
    started
        .map(|handle| handle.thread().clone())
        .inspect_err(|error| tracing::warn!(%error, "no thread for slots"))
        .ok()
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn tasks_are_woken_in_the_order_of_their_instants_and_not_before() {
        let timer = SlotTimer::default();
        let now = Instant::now();
        let wait = async |millis| {
            let at = now + Duration::from_millis(millis);
            timer.wait_until(at).await;
            assert!(Instant::now() >= at);
            Instant::now()
        };
        let (last, first, passed) = tokio::join!(wait(600), wait(200), wait(0));
        assert!(passed <= first && first <= last);
    }

    #[tokio::test]
    async fn a_cancelled_wait_keeps_nobody_waiting_and_the_thread_ends_with_its_timer() {
        let timer = SlotTimer::default();
        let far = Instant::now() + Duration::from_millis(30);
        assert!(timeout(Duration::from_millis(1), timer.wait_until(far)).await.is_err());
        timer.wait_until(far + Duration::from_millis(1)).await;
        assert!(timer.wakes.0.lock().by_time.is_empty());
        let wakes = Arc::downgrade(&timer.wakes);
        drop(timer);
        while wakes.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
