//! The watch over processes: what one that dies had claimed, or was permitted, is resolved within seconds.
//!
//! ```text
//! beats stand still ──▶ declared dead ─┬▶ permits that it had in hand: those without a slot go back, the others are unknown
//!                                      └▶ claims of its own that no permit is out for: unknown
//! ```
//!
//! A claim belongs to the process that made it, and its permit to the worker that took it. So a long request of a living worker is
//! left alone, whoever claimed its delivery. Any number of processes may watch: each step may be made twice.

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
use weir_store::{BEAT_EVERY, DEAD_AFTER, ProcessBeat, SharedStore};

use crate::returns::{Failure, wakes_of};

/// Claims looked at in one pass: more than are ever out.
const MOST_CLAIMS: u32 = 100_000;
/// Claims resolved in one statement.
const PAGE: usize = 1_000;

/// Finds processes that have died, and resolves what they left.
pub struct ProcessWatcher {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    beats: Beats,
    /// Orphaned claims that permits are out for. Should their workers die, they are found as permits.
    permitted: HashSet<Claim>,
}

impl ProcessWatcher {
    pub fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self { store, queue, clock, beats: Beats::default(), permitted: HashSet::new() }
    }

    /// Looks at once and then every second until `shutdown` resolves. A pass may be broken off anywhere.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                looked = self.pass() => {
                    if let Err(error) = looked {
                        tracing::warn!(%error, "could not look after other processes; the next pass tries again");
                        // Whoever could not be seen may have been alive.
                        self.beats.forget();
                    }
                }
            }
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(BEAT_EVERY) => {}
            }
        }
    }

    async fn pass(&mut self) -> Result<(), Failure> {
        // In this order: who takes permits has registered before.
        let holders = self.queue.holders().await?;
        let mut registered = self.store.processes().await?;
        for ProcessBeat { id, beat } in self.beats.observe(&registered, Instant::now()) {
            if self.store.declare_dead(id, beat).await? {
                tracing::warn!(process = id.0, "a process is gone; what it had under way is resolved");
                counter!("weir_processes_lost_total").increment(1);
                registered.retain(|process| process.id != id);
            }
        }
        let gone: Vec<ProcessId> =
            holders.into_iter().filter(|holder| registered.iter().all(|process| process.id != *holder)).collect();
        if !gone.is_empty() {
            self.resolve_permits(&gone).await?;
        }
        self.resolve_claims().await
    }

    /// What gone workers had in hand.
    async fn resolve_permits(&self, gone: &[ProcessId]) -> Result<(), Failure> {
        loop {
            let left = self.queue.orphaned_permits(gone).await?;
            if left.is_empty() {
                return Ok(());
            }
            let (had_slot, unsent): (Vec<OrphanedPermit>, Vec<OrphanedPermit>) =
                left.into_iter().partition(|permit| permit.had_slot);
            let claims = |permits: &[OrphanedPermit]| permits.iter().map(|permit| permit.claim).collect::<Vec<_>>();
            let (unsent_claims, unknown_claims) = (claims(&unsent), claims(&had_slot));
            let wakes = wakes_of(&[&unsent_claims[..], &unknown_claims[..]].concat(), self.clock.now());
            self.store.release(unsent_claims, self.clock.now()).await?;
            let handed_back: Vec<_> =
                unsent.iter().map(|permit| HandedBack { id: permit.id, crowded: false }).collect();
            self.queue.hand_back(&handed_back).await?;
            self.resolve(&unknown_claims).await?;
            let settled: Vec<_> = had_slot.iter().map(|permit| permit.id).collect();
            self.queue.settle(&settled).await?;
            self.queue.recorded(&settled);
            tracing::warn!(unknown = had_slot.len(), unsent = unsent.len(), "resolved what lost workers had in hand");
            self.queue.wake(&wakes).await?;
        }
    }

    /// What gone processes had claimed and not published.
    async fn resolve_claims(&mut self) -> Result<(), Failure> {
        let orphaned = self.store.orphaned_claims(MOST_CLAIMS).await?;
        let known = std::mem::take(&mut self.permitted);
        let (permitted, new): (Vec<_>, Vec<_>) = orphaned.into_iter().partition(|claim| known.contains(claim));
        self.permitted.extend(permitted);
        if new.is_empty() {
            return Ok(());
        }
        // After the claims: whoever sent one of them meanwhile has recorded it, or still has its permit in hand.
        let out = self.queue.permitted_claims().await?;
        let (permitted, lost): (Vec<_>, Vec<_>) = new.into_iter().partition(|claim| out.contains(claim));
        self.permitted.extend(permitted);
        if !lost.is_empty() {
            self.resolve(&lost).await?;
            tracing::warn!(unknown = lost.len(), "resolved what lost processes had claimed");
            self.queue.wake(&wakes_of(&lost, self.clock.now())).await?;
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

/// How long the beat of each process has not changed, measured by the clock of this process.
#[derive(Debug, Default)]
struct Beats {
    known: HashMap<ProcessId, Still>,
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Still {
    beat: i64,
    stood: Duration,
}

impl Beats {
    /// Takes in what is seen at one look, and answers those whose beats have stood still for too long. A look after a long pause
    /// counts no more than one in time: who looks may have stood still itself.
    fn observe(&mut self, seen: &[ProcessBeat], now: Instant) -> Vec<ProcessBeat> {
        let passed = self.looked.map_or(Duration::ZERO, |looked| now.duration_since(looked)).min(BEAT_EVERY * 3 / 2);
        self.looked = Some(now);
        let mut known = std::mem::take(&mut self.known);
        for &ProcessBeat { id, beat } in seen {
            let stood = match known.remove(&id) {
                Some(still) if still.beat == beat => still.stood + passed,
                _ => Duration::ZERO,
            };
            self.known.insert(id, Still { beat, stood });
        }
        seen.iter().filter(|process| self.known[&process.id].stood >= DEAD_AFTER).copied().collect()
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

    /// What is answered at each of these looks, a second apart.
    fn looks(seen: &[&[ProcessBeat]]) -> Vec<Vec<i32>> {
        let (mut beats, mut now) = (Beats::default(), Instant::now());
        let mut look = |seen: &&[ProcessBeat]| {
            now += Duration::from_secs(1);
            beats.observe(seen, now).iter().map(|process| process.id.0).collect()
        };
        seen.iter().map(&mut look).collect()
    }

    #[test]
    fn a_process_whose_beat_stands_still_for_five_seconds_is_dead() {
        let seen = [process(1, 7)];
        assert_eq!(looks(&[&seen[..]; 6]), [vec![], vec![], vec![], vec![], vec![], vec![1]]);
    }

    #[test]
    fn a_beat_that_is_raised_begins_anew() {
        let (before, after) = ([process(1, 7), process(2, 7)], [process(1, 8), process(2, 7)]);
        let seen = [&before[..], &before, &before, &before, &after, &after, &after, &after, &after, &after];
        let dead = looks(&seen);
        assert_eq!(dead[..5].concat(), Vec::<i32>::new());
        assert_eq!(dead[5..9].concat(), [2, 2, 2, 2]);
        assert_eq!(dead[9], [1, 2]);
    }

    #[test]
    fn who_stood_still_itself_takes_nobody_for_dead() {
        let (mut beats, now) = (Beats::default(), Instant::now());
        assert_eq!(beats.observe(&[process(1, 7)], now), []);
        assert_eq!(beats.observe(&[process(1, 7)], now + Duration::from_secs(60)), []);
    }
}
