//! Publishing: the end of a run, once.
//!
//! A lost answer means that the publication may have run. It is repeated under its name, by which the script knows it; only an
//! answer to a first try can say that nothing was published, and only then may the claims be given back.

use std::time::Duration;

use weir_core::{Clock as _, Timestamp, plan::NextRun};
use weir_queue::{Publication, Published};

use crate::{
    connection::CallError,
    schedule::{BATCH, by_shard},
    scripts::{Call, Operation},
    shard_context::{Answered, ShardContext},
};

/// How often a publication is tried.
const TRIES: u32 = 3;
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// What became of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Nothing was published.
    Stale,
    /// It may have been published.
    Unknown,
}

/// Publications that go in one call.
struct Batch {
    /// Their places among all.
    members: Vec<usize>,
    call: Call,
    /// An earlier try may have run: then a refusal says nothing about it.
    maybe_ran: bool,
}

impl ShardContext {
    /// Repeats what brought no answer: a publication that ran is known by its name and answers again.
    pub(crate) async fn publish(&self, publications: &[Publication]) -> Vec<Outcome> {
        if !self.lease.is_valid() {
            return vec![Outcome::Stale; publications.len()];
        }
        let mut outcomes = vec![None; publications.len()];
        let mut open = self.batches(publications);
        let mut delay = FIRST_RETRY;
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(delay).await;
                delay *= 2;
            }
            self.try_publish(&mut open, &mut outcomes).await;
            if open.is_empty() {
                break;
            }
        }
        for batch in open {
            for member in batch.members {
                outcomes[member] = Some(if batch.maybe_ran { Outcome::Unknown } else { Outcome::Stale });
            }
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Unknown)).collect()
    }

    /// One call for each batch; keeps those without an answer.
    async fn try_publish(&self, open: &mut Vec<Batch>, outcomes: &mut [Option<Outcome>]) {
        let (calls, batches): (Vec<Call>, Vec<(Vec<usize>, bool)>) =
            open.drain(..).map(|batch| (batch.call, (batch.members, batch.maybe_ran))).unzip();
        let answers = self.call_all(&calls).await;
        for ((call, (members, maybe_ran)), answered) in calls.into_iter().zip(batches).zip(answers) {
            let Answered { mut rest, .. } = match answered {
                Ok(answered) => answered,
                Err(error) => {
                    tracing::warn!(%error, "could not publish");
                    let maybe_ran = maybe_ran || matches!(error, CallError::Unknown(_));
                    open.push(Batch { members, call, maybe_ran });
                    continue;
                }
            };
            if let Some(due) = rest.next_time() {
                self.due_times.learn(call.shard, due);
            }
            for member in members {
                outcomes[member] = rest.next_int().map(|ran| match ran {
                    1 => Outcome::Done,
                    _ if maybe_ran => Outcome::Unknown,
                    _ => Outcome::Stale,
                });
            }
        }
    }

    /// Learns what the end of a run tells.
    pub(crate) fn published(&self, publication: Publication, outcome: Outcome) -> Published {
        let Publication { lease, deliveries, next, .. } = publication;
        match outcome {
            Outcome::Done => {}
            Outcome::Stale => return Published::Stale(deliveries),
            Outcome::Unknown => return Published::Unknown,
        }
        if next.fast_path_ahead().is_some() {
            self.gates.rested(lease.destination_id, self.clock.now());
        }
        Published::Done
    }

    fn batches(&self, publications: &[Publication]) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        let places = by_shard(0..publications.len(), |&place| publications[place].lease.destination_id);
        for (shard, places) in places {
            let mut room = 0;
            for place in places {
                let publication = &publications[place];
                let size = publication.deliveries.len().max(1);
                if room < size || batches.is_empty() {
                    room = BATCH.max(size);
                    let call = self.new_call(shard, Operation::Publish);
                    batches.push(Batch { members: Vec::new(), call, maybe_ran: false });
                }
                room -= size;
                if let Some(batch) = batches.last_mut() {
                    batch.members.push(place);
                    self.write(publication, &mut batch.call);
                }
            }
        }
        batches
    }

    fn write(&self, publication: &Publication, call: &mut Call) {
        let Publication { lease, terms, recovered, deliveries, next } = publication;
        call.destination(lease.destination_id)
            .arg(lease.epoch)
            .arg(lease.version)
            .arg(rand::random::<u64>().to_string());
        call.arg(u8::from(terms.is_some()));
        if let Some(terms) = terms {
            call.terms(terms);
        }
        call.arg(u8::from(recovered.is_some()));
        if let Some(recovered) = recovered {
            call.limiter(recovered);
        }
        let (next, due) = match *next {
            NextRun::Stop => ("stop", Timestamp::MIN),
            NextRun::At(due) => ("at", due),
            NextRun::Soon(due) => ("soon", due),
            NextRun::Now => ("now", Timestamp::MIN),
            NextRun::Paced => ("paced", Timestamp::MIN),
            NextRun::OnSettle => ("on_settle", Timestamp::MIN),
            NextRun::Continue => ("continue", Timestamp::MIN),
        };
        call.arg(next).not_before(due).deliveries(deliveries, self.config.largest_inline_body);
    }
}
