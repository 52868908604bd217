//! Resolves the claims and permits of dead processes, within seconds.
//!
//! ```text
//! beat stops ──▶ declared dead ─┬▶ its permits without a slot: handed back unsent
//!                               ├▶ its permits with a slot: settled, outcome unknown
//!                               └▶ its claims without a permit: resolved, outcome unknown
//! ```
//!
//! A claim belongs to the process that made it, and its permit to the worker that took it. A long request of a living
//! worker is therefore not touched when the process that claimed the delivery dies. Any number of processes may run
//! this: each step may be made twice.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use metrics::counter;
use tokio::time::Instant;
use weir_core::{
    Clock,
    claim::{Claim, ProcessId},
};
use weir_queue::{HandedBack, OrphanedPermit, SharedQueue};
use weir_store::{BEAT_EVERY, DEAD_AFTER, ProcessBeat, ProcessStore};

use crate::{
    release::{Failure, wakes_of},
    run_every::{Agent, run_every},
};

/// Claims read in one pass: more than are ever outstanding.
const MAX_CLAIMS: u32 = 100_000;
/// Claims resolved in one statement, so that none holds its locks for long.
const PAGE: usize = 1_000;

/// Finds dead processes, and resolves their claims and permits.
pub struct ProcessWatcher {
    store: Arc<dyn ProcessStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    beats: BeatTracker,
    /// Orphaned claims that have outstanding permits. They need no further look-up: if the workers of these permits
    /// die, `resolve_permits` finds the permits.
    claims_with_permit: HashSet<Claim>,
}

impl ProcessWatcher {
    pub fn new(store: Arc<dyn ProcessStore>, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self { store, queue, clock, beats: BeatTracker::default(), claims_with_permit: HashSet::new() }
    }

    /// Makes a pass at once and then every second until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(BEAT_EVERY, shutdown, self).await;
    }

    async fn pass(&mut self) -> Result<(), Failure> {
        // In this order: a process registers before it takes permits.
        let holders = self.queue.holders().await?;
        let mut registered = self.store.processes().await?;
        // A process whose beat has changed meanwhile is not declared dead.
        for ProcessBeat { id, beat } in self.beats.observe(&registered, Instant::now()) {
            if self.store.declare_dead(id, beat).await? {
                tracing::warn!(process = id.0, "a process is dead; resolving its claims and permits");
                counter!("weir_processes_lost_total").increment(1);
                registered.retain(|process| process.id != id);
            }
        }
        // All holders that are not registered, also those that another process has declared dead.
        let dead: Vec<ProcessId> =
            holders.into_iter().filter(|holder| registered.iter().all(|process| process.id != *holder)).collect();
        if !dead.is_empty() {
            self.resolve_permits(&dead).await?;
        }
        self.resolve_claims().await
    }

    /// Resolves the permits that dead workers had taken.
    async fn resolve_permits(&self, dead: &[ProcessId]) -> Result<(), Failure> {
        // The queue returns a permit again until it has ended, so this repeats until there are none.
        loop {
            let orphaned = self.queue.orphaned_permits(dead).await?;
            if orphaned.is_empty() {
                return Ok(());
            }
            let wakes = wakes_of(orphaned.iter().map(|permit| permit.id.destination_id), self.clock.now());
            // A permit with a slot may have been sent. One without a slot was not, and can get no slot any more.
            let (had_slot, unsent): (Vec<OrphanedPermit>, Vec<OrphanedPermit>) =
                orphaned.into_iter().partition(|permit| permit.had_slot);
            let claims = |permits: &[OrphanedPermit]| permits.iter().map(|permit| permit.claim).collect::<Vec<_>>();
            let (unsent_claims, unknown_claims) = (claims(&unsent), claims(&had_slot));
            // Unsent: the store releases the claims, uncounted. Only then does the queue drop the permits: if this
            // process dies in between, the next pass still finds them.
            self.store.release(unsent_claims, self.clock.now()).await?;
            let handed_back: Vec<_> =
                unsent.iter().map(|permit| HandedBack { id: permit.id, crowded: false }).collect();
            self.queue.hand_back(&handed_back).await?;
            // Possibly sent: the outcome is unknown. The store comes first here too, for the same reason.
            self.resolve(&unknown_claims).await?;
            let ids: Vec<_> = had_slot.iter().map(|permit| permit.id).collect();
            let settled: Vec<_> = ids.iter().map(|&id| id.into()).collect();
            self.queue.settle(&settled).await?;
            self.queue.recorded(&ids);
            tracing::warn!(unknown = had_slot.len(), unsent = unsent.len(), "resolved the permits of dead workers");
            // Their deliveries are due again. Without these wakes they would wait for the sweep.
            self.queue.wake(&wakes).await?;
        }
    }

    /// Resolves the claims that dead processes made and did not publish.
    async fn resolve_claims(&mut self) -> Result<(), Failure> {
        let orphaned = self.store.orphaned_claims(MAX_CLAIMS).await?;
        // A claim that was found with a permit is not looked up in the queue again. It is forgotten when it is no
        // longer orphaned.
        let known = std::mem::take(&mut self.claims_with_permit);
        let (with_permit, new): (Vec<_>, Vec<_>) = orphaned.into_iter().partition(|claim| known.contains(claim));
        self.claims_with_permit.extend(with_permit);
        if new.is_empty() {
            return Ok(());
        }
        // Read permits after claims: a worker that has sent one of these deliveries has recorded the attempt or still
        // has its permit.
        let Some(permitted) = self.queue.permitted_claims().await? else {
            // The queue has lost its data a moment ago. The workers renew the claims that they hold; what is orphaned
            // afterwards has no permit.
            return Ok(());
        };
        let (with_permit, lost): (Vec<_>, Vec<_>) = new.into_iter().partition(|claim| permitted.contains(claim));
        self.claims_with_permit.extend(with_permit);
        if !lost.is_empty() {
            self.resolve(&lost).await?;
            tracing::warn!(unknown = lost.len(), "resolved the claims of dead processes");
            // A claim does not name its flow; the sweep wakes those with limit keys.
            let destinations = lost.iter().map(|claim| claim.destination_id);
            self.queue.wake(&wakes_of(destinations, self.clock.now())).await?;
        }
        Ok(())
    }

    async fn resolve(&self, claims: &[Claim]) -> Result<(), Failure> {
        for claims in claims.chunks(PAGE) {
            let recovered = self.store.resolve_claims(claims.to_vec(), self.clock.now()).await?;
            counter!("weir_claims_recovered_total").increment(recovered.total());
        }
        Ok(())
    }
}

impl Agent for ProcessWatcher {
    async fn make_pass(&mut self) {
        if let Err(error) = self.pass().await {
            tracing::warn!(%error, "could not check other processes; the next pass tries again");
            // Processes may have been alive while they could not be observed.
            self.beats.forget();
        }
    }
}

/// How long the beat of each process has not changed, by the clock of this process.
#[derive(Debug, Default)]
struct BeatTracker {
    known: HashMap<ProcessId, LastBeat>,
    observed_at: Option<Instant>,
}

#[derive(Debug)]
struct LastBeat {
    beat: i64,
    unchanged_for: Duration,
}

impl BeatTracker {
    /// Records one observation. Returns the processes whose beats have not changed for too long. After a long pause,
    /// the time between two observations counts only as one and a half intervals, because this process may have stalled
    /// itself.
    fn observe(&mut self, seen: &[ProcessBeat], now: Instant) -> Vec<ProcessBeat> {
        let passed = self.observed_at.map_or(Duration::ZERO, |at| now.duration_since(at)).min(BEAT_EVERY * 3 / 2);
        self.observed_at = Some(now);
        let mut known = std::mem::take(&mut self.known);
        for &ProcessBeat { id, beat } in seen {
            let unchanged_for = match known.remove(&id) {
                Some(last) if last.beat == beat => last.unchanged_for + passed,
                _ => Duration::ZERO,
            };
            self.known.insert(id, LastBeat { beat, unchanged_for });
        }
        seen.iter().filter(|process| self.known[&process.id].unchanged_for >= DEAD_AFTER).copied().collect()
    }

    fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: i32, beat: i64) -> ProcessBeat {
        ProcessBeat { id: ProcessId(id), beat }
    }

    /// The dead processes after each of these observations, which are one second apart.
    fn observations(seen: &[&[ProcessBeat]]) -> Vec<Vec<i32>> {
        let (mut beats, mut now) = (BeatTracker::default(), Instant::now());
        let mut observe = |seen: &&[ProcessBeat]| {
            now += Duration::from_secs(1);
            beats.observe(seen, now).iter().map(|process| process.id.0).collect()
        };
        seen.iter().map(&mut observe).collect()
    }

    #[test]
    fn a_process_whose_beat_does_not_change_for_five_seconds_is_dead() {
        let seen = [process(1, 7)];
        assert_eq!(observations(&[&seen[..]; 6]), [vec![], vec![], vec![], vec![], vec![], vec![1]]);
    }

    #[test]
    fn a_changed_beat_resets_the_time() {
        let (before, after) = ([process(1, 7), process(2, 7)], [process(1, 8), process(2, 7)]);
        let seen = [&before[..], &before, &before, &before, &after, &after, &after, &after, &after, &after];
        let dead = observations(&seen);
        assert_eq!(dead[..5].concat(), Vec::<i32>::new());
        assert_eq!(dead[5..9].concat(), [2, 2, 2, 2]);
        assert_eq!(dead[9], [1, 2]);
    }

    #[test]
    fn a_watcher_that_stalled_itself_declares_no_process_dead() {
        let (mut beats, now) = (BeatTracker::default(), Instant::now());
        assert_eq!(beats.observe(&[process(1, 7)], now), []);
        assert_eq!(beats.observe(&[process(1, 7)], now + Duration::from_secs(60)), []);
    }
}
