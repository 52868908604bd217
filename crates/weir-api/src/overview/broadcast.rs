//! The samples that all streams of a process show: one each second, and one after a change that people made.
//!
//! One task takes the samples, from the first open stream to the end of the last one. So all streams show the same
//! samples, however many there are and however late some of them are.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{sample::Sample, sampler::Sampler};

/// How often streams show a new sample.
const INTERVAL: Duration = Duration::from_secs(1);
/// Instead of a new sample, streams may show one of this age that a request took.
const SHARED_FOR: Duration = Duration::from_millis(500);
/// The next sample begins no sooner than after this many times the time of the last one. So the streams cost less than
/// a tenth of one core, and 10,000 destinations with backlogs are still shown every one or two seconds.
const PAUSE_COSTS: u32 = 10;
/// The shortest time between two samples, so that a program that makes changes without pause causes at most four
/// snapshots a second on each stream. A person who saves an edit does not notice this delay.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);

/// The task that takes samples for the streams, if there are streams.
#[derive(Default)]
pub(super) struct Broadcasts {
    running: Running,
}

/// The channel of the task that runs. `None`: none runs.
type Running = Arc<Mutex<Option<Channel>>>;
/// `None`: the first sample is being taken.
type Channel = watch::Sender<Option<Arc<Sample>>>;

/// The samples of one stream.
pub(crate) struct Samples(watch::Receiver<Option<Arc<Sample>>>);

impl Samples {
    /// The next sample; the first one at once if other streams show one. `None`: the store does not answer.
    pub(crate) async fn next(&mut self) -> Option<Arc<Sample>> {
        loop {
            self.0.changed().await.ok()?;
            if let Some(sample) = &*self.0.borrow_and_update() {
                return Some(Arc::clone(sample));
            }
        }
    }
}

impl Broadcasts {
    /// The samples for a new stream.
    pub(super) fn join(&self, sampler: &Arc<Sampler>, changed: &watch::Sender<Option<Instant>>) -> Samples {
        let mut running = self.running.lock();
        let channel = running.get_or_insert_with(|| {
            let channel = Channel::new(None);
            let broadcast = Broadcast {
                running: Arc::clone(&self.running),
                channel: channel.clone(),
                sampler: Arc::clone(sampler),
            };
            tokio::spawn(broadcast.run(changed.subscribe()));
            channel
        });
        let mut samples = channel.subscribe();
        // The current sample is new to this stream.
        samples.mark_changed();
        Samples(samples)
    }
}

/// The running task. It is dropped when it ends for whatever reason: then the streams end, and the next stream starts
/// another task.
struct Broadcast {
    running: Running,
    channel: Channel,
    sampler: Arc<Sampler>,
}

impl Broadcast {
    async fn run(self, mut changed: watch::Receiver<Option<Instant>>) {
        let mut due = Instant::now();
        loop {
            let shared_for = tokio::select! {
                () = sleep_until(due) => SHARED_FOR,
                // The sample must begin after the change.
                Ok(()) = changed.changed() => Duration::ZERO,
                () = self.channel.closed() => {
                    if self.ends() {
                        return;
                    }
                    continue;
                }
            };
            due = Instant::now() + INTERVAL;
            let sample = match self.sampler.renewed(|sample| sample.age() <= shared_for).await {
                Ok(sample) => sample,
                // The clients connect again, and are then told why.
                Err(error) => return tracing::debug!(%error, "the streams end, because the store does not answer"),
            };
            let pause = (sample.cost * PAUSE_COSTS).max(SHORTEST_PAUSE);
            self.channel.send_replace(Some(sample));
            // A pause without streams is of no use.
            let _ = timeout(pause, self.channel.closed()).await;
        }
    }

    /// Whether there is no stream. Then no stream joins this task any more.
    fn ends(&self) -> bool {
        let mut running = self.running.lock();
        let ends = self.channel.receiver_count() == 0;
        if ends {
            *running = None;
        }
        ends
    }
}

impl Drop for Broadcast {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        // Another task may run since this one ended.
        if running.as_ref().is_some_and(|channel| channel.same_channel(&self.channel)) {
            *running = None;
        }
    }
}
