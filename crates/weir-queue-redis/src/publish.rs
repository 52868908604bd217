//! Publishes the result of a run exactly once.
//!
//! If an answer is lost, the publication may have run. It is repeated under its name, by which the script knows it.
//! Only the answer to a first try can say that nothing was published, and only then may the claims be released.

use std::time::Duration;

use weir_core::{Backoff, Clock as _, Timestamp, plan::NextRun};
use weir_queue::{Publication, Published, QueueError};

use crate::{
    RedisQueue,
    client::ScriptAnswer,
    keys::Shard,
    schedule::{BATCH, by_shard},
    scripts::{Call, Operation},
};

/// How many times a publication is tried. While Redis is silent, three tries take longer than the lease of the run: by
/// then another scheduler may run the job, and a further try would be refused.
const TRIES: u32 = 3;
/// The pauses between the tries: a connection that was closed is made again, well within the lease.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(200));

/// The result of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PublishOutcome {
    Done,
    /// Nothing was published.
    Stale,
    /// The permits may have been published.
    Unknown,
}

/// The publications of one call.
struct Batch {
    /// Their indexes in the list of all publications.
    indexes: Vec<usize>,
    call: Call,
    /// Whether an earlier try may have run. If so, a refusal of this try does not mean that nothing was published.
    maybe_ran: bool,
}

impl RedisQueue {
    /// Repeats calls without an answer. Redis knows a publication that ran by its name and gives the same answer again.
    pub(crate) async fn publish_all(&self, publications: &[Publication]) -> Vec<PublishOutcome> {
        // Without a valid heartbeat this process may count as dead, and others may have resolved its claims.
        if !self.client.heartbeat.is_valid() {
            return vec![PublishOutcome::Stale; publications.len()];
        }
        // Batches without an answer are tried again. After a few tries the lease of the run may have ended.
        let mut outcomes = vec![None; publications.len()];
        let mut open = self.batches(publications);
        let mut pauses = PAUSES;
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(pauses.fail()).await;
            }
            self.try_publish(&mut open, &mut outcomes).await;
            if open.is_empty() {
                break;
            }
        }
        // These batches have no answer after the last try.
        for batch in open {
            for index in batch.indexes {
                outcomes[index] = Some(if batch.maybe_ran { PublishOutcome::Unknown } else { PublishOutcome::Stale });
            }
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or(PublishOutcome::Unknown)).collect()
    }

    /// Makes one call for each batch. Keeps the batches without an answer.
    async fn try_publish(&self, open: &mut Vec<Batch>, outcomes: &mut [Option<PublishOutcome>]) {
        // The calls are kept, because a repetition must have the same names.
        let (calls, batches): (Vec<Call>, Vec<(Vec<usize>, bool)>) =
            open.drain(..).map(|batch| (batch.call, (batch.indexes, batch.maybe_ran))).unzip();
        let answers = self.client.call_all(&calls).await;
        for ((call, (indexes, maybe_ran)), answered) in calls.into_iter().zip(batches).zip(answers) {
            let ScriptAnswer { mut values, .. } = match answered {
                Ok(answered) => answered,
                Err(error) => {
                    tracing::warn!(%error, "could not publish");
                    let maybe_ran = maybe_ran || matches!(error, QueueError::Unknown(_));
                    open.push(Batch { indexes, call, maybe_ran });
                    continue;
                }
            };
            // Each answer begins with the earliest due time of the shard. Another process may have set it, so learn it.
            if let Some(due) = values.next_time() {
                self.client.due_times.learn(call.shard, due);
            }
            // A refusal of the first try is certain. After a try that may have run, it may have published.
            for index in indexes {
                outcomes[index] = values.next_int().map(|ran| match ran {
                    1 => PublishOutcome::Done,
                    _ if maybe_ran => PublishOutcome::Unknown,
                    _ => PublishOutcome::Stale,
                });
            }
        }
    }

    /// Updates the admission estimates, and returns the result to the scheduler.
    pub(crate) fn published(&self, publication: Publication, outcome: PublishOutcome) -> Published {
        let Publication { lease, deliveries, next, .. } = publication;
        match outcome {
            PublishOutcome::Done => {}
            PublishOutcome::Stale => return Published::Stale(deliveries),
            PublishOutcome::Unknown => return Published::Unknown,
        }
        if next.fast_path_ahead().is_some() {
            self.client.estimates.backlog_ended(lease.destination_id, self.client.clock.now());
        }
        Published::Done
    }

    fn batches(&self, publications: &[Publication]) -> Vec<Batch> {
        // A call is about one shard, with as many publications as fit.
        let mut batches: Vec<Batch> = Vec::new();
        let indexes = by_shard(0..publications.len(), |&index| Shard::numbered(publications[index].lease.shard));
        for (shard, indexes) in indexes {
            // How many more deliveries the current call takes.
            let mut room = 0;
            for index in indexes {
                let publication = &publications[index];
                // A publication is one step, so it is never split. One that is larger than a batch has a call of its
                // own.
                let size = publication.deliveries.len().max(1);
                if room < size || batches.is_empty() {
                    room = BATCH.max(size);
                    let call = self.client.new_call(shard, Operation::Publish);
                    batches.push(Batch { indexes: Vec::new(), call, maybe_ran: false });
                }
                room -= size;
                if let Some(batch) = batches.last_mut() {
                    batch.indexes.push(index);
                    self.write(publication, &mut batch.call);
                }
            }
        }
        batches
    }

    fn write(&self, publication: &Publication, call: &mut Call) {
        // Everything in the order in which publish.lua reads it. The name is new for each publication and the same in
        // every try.
        let Publication { lease, terms, recovered, groups, pace, deliveries, next } = publication;
        call.destination(lease.destination_id)
            .arg(lease.epoch)
            .arg(lease.version)
            .arg(rand::random::<u64>().to_string());
        // An optional value is a list of none or one.
        call.arg(u8::from(terms.is_some()));
        if let Some(terms) = terms {
            call.terms(terms);
        }
        call.arg(u8::from(recovered.is_some()));
        if let Some(recovered) = recovered {
            call.limiter(recovered);
        }
        call.arg(groups.len());
        for group in groups {
            call.group(group, self.client.clock.now());
        }
        call.arg(u8::from(pace.is_some()));
        if let Some(rate) = pace {
            call.pace(rate, self.client.clock.now());
        }
        // Only `at` and `soon` have a due time; for the others it is 0.
        let (next, due) = match *next {
            NextRun::Stop => ("stop", Timestamp::MIN),
            NextRun::At(due) => ("at", due),
            NextRun::Soon(due) => ("soon", due),
            NextRun::Now => ("now", Timestamp::MIN),
            NextRun::Paced => ("paced", Timestamp::MIN),
            NextRun::OnSettle => ("on_settle", Timestamp::MIN),
            NextRun::Continue => ("continue", Timestamp::MIN),
        };
        call.arg(next).not_before(due).deliveries(deliveries, &self.client.config);
    }
}
