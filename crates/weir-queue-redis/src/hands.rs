//! The permits in this process's hands, and what it knows that forbids starting them.
//!
//! A start must not wait for Redis, so it is decided from here: the permit was read by this process, has not been started or
//! expired, belongs to the present generation, and its destination is neither suspended nor held. Suspensions and holds come as
//! notices from other processes within a round trip; a permit that asks for a slot is checked by the script as well.
//!
//! A generation that ended may be unknown here for a while. So nothing starts more than [`TRUSTED`] after the last answer of
//! Redis: when a new generation is that old, no permit of before can start any more, whatever the network does.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use weir_core::{DestinationId, Timestamp};
use weir_queue::PermitId;

use crate::keys::{SHARDS, Shard};

/// How long what Redis answered is taken to be so still. The scheduler counts on less than three seconds.
const TRUSTED: Duration = Duration::from_millis(2_500);
/// Longer than any permit lives: what is older concerns nobody.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What became of a permit, for the queue to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) id: PermitId,
    pub(crate) started: bool,
    pub(crate) generation: u64,
    /// The entry of the delivery queue to remove; the first report of a permit names it.
    pub(crate) entry: Option<String>,
}

/// A permit that comes into this process's hands.
pub(crate) struct Received {
    pub(crate) id: PermitId,
    pub(crate) generation: u64,
    /// The version of the job when its destination was seen to be neither paused nor deleted.
    pub(crate) version: u64,
    pub(crate) expires_at: Timestamp,
    /// Its entry of the delivery queue, unless it came straight.
    pub(crate) entry: Option<String>,
}

struct Held {
    entry: Option<String>,
    generation: u64,
    expires_at: Timestamp,
    started: bool,
}

/// What forbids starting a destination's permits.
struct Restraint {
    version: u64,
    suspended_at: Option<u64>,
    held_until: Timestamp,
    learnt_at: Timestamp,
}

#[derive(Default)]
struct Known {
    generations: [u64; SHARDS],
    /// When what each shard answered last was asked, in nanoseconds by the monotonic clock.
    heard: [i64; SHARDS],
    permits: HashMap<PermitId, Held>,
    restraints: HashMap<DestinationId, Restraint>,
}

impl Known {
    fn restraint(&mut self, id: DestinationId, now: Timestamp) -> &mut Restraint {
        let restraint = self.restraints.entry(id).or_insert(Restraint {
            version: 0,
            suspended_at: None,
            held_until: Timestamp::MIN,
            learnt_at: now,
        });
        restraint.learnt_at = now;
        restraint
    }

    fn is_restrained(&self, id: DestinationId, now: Timestamp) -> bool {
        let restraint = self.restraints.get(&id);
        restraint.is_some_and(|restraint| restraint.suspended_at.is_some() || restraint.held_until > now)
    }

    fn generation_of(&self, id: DestinationId) -> u64 {
        self.generations[Shard::of(id).index()]
    }
}

#[derive(Default)]
pub(crate) struct Hands(Mutex<Known>);

impl Hands {
    // A panic while the lock is held is a bug already reported; what is known is still the best there is.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Generations only ever rise; answers whether this one ends another.
    pub(crate) fn learn_generation(&self, shard: Shard, generation: u64) -> bool {
        let known = &mut self.known().generations[shard.index()];
        let ended = std::mem::replace(known, generation.max(*known));
        ended > 0 && generation > ended
    }

    /// The shard's generation, as far as is known.
    pub(crate) fn generation(&self, shard: Shard) -> u64 {
        self.known().generations[shard.index()]
    }

    /// The shard's generation was this one after the instant `asked`, by the monotonic clock. Answers as
    /// [`Self::learn_generation`].
    pub(crate) fn hear(&self, shard: Shard, generation: u64, asked: i64) -> bool {
        let ended = self.learn_generation(shard, generation);
        let known = &mut *self.known();
        if known.generations[shard.index()] == generation {
            let heard = &mut known.heard[shard.index()];
            *heard = asked.max(*heard);
        }
        ended
    }

    /// The destination was suspended or resumed; notices may come late, and then say nothing new.
    pub(crate) fn learn_suspension(&self, id: DestinationId, version: u64, suspended: bool, now: Timestamp) {
        let mut known = self.known();
        let restraint = known.restraint(id, now);
        if version >= restraint.version {
            restraint.version = version;
            restraint.suspended_at = suspended.then_some(version);
        }
    }

    pub(crate) fn learn_hold(&self, id: DestinationId, until: Timestamp, now: Timestamp) {
        let mut known = self.known();
        let restraint = known.restraint(id, now);
        restraint.held_until = restraint.held_until.max(until);
    }

    /// Takes a permit in hand. `false`: it must not be used, because it is there already, or of a generation that has ended, or
    /// came straight to a destination that was suspended meanwhile.
    pub(crate) fn receive(&self, received: Received) -> bool {
        let Received { id, generation, version, expires_at, entry } = received;
        self.learn_generation(Shard::of(id.destination_id), generation);
        let mut known = self.known();
        if generation != known.generation_of(id.destination_id) || known.permits.contains_key(&id) {
            return false;
        }
        if let Some(restraint) = known.restraints.get_mut(&id.destination_id) {
            // After that edit the destination was seen to be neither paused nor deleted.
            restraint.suspended_at = restraint.suspended_at.filter(|at| *at > version);
            if restraint.suspended_at.is_some() && entry.is_none() {
                return false;
            }
        }
        known.permits.insert(id, Held { entry, generation, expires_at, started: false });
        true
    }

    /// Every permit in hand.
    pub(crate) fn held(&self) -> HashSet<PermitId> {
        self.known().permits.keys().copied().collect()
    }

    /// The report of the start, or `None` when the permit must not be started. `monotonic` as in [`Self::hear`].
    pub(crate) fn start(&self, id: PermitId, now: Timestamp, monotonic: i64) -> Option<Report> {
        let mut known = self.known();
        let heard = known.heard[Shard::of(id.destination_id).index()];
        if monotonic - heard > TRUSTED.as_nanos() as i64 {
            return None;
        }
        if known.is_restrained(id.destination_id, now) {
            return None;
        }
        let generation = known.generation_of(id.destination_id);
        let held = known.permits.get_mut(&id)?;
        if held.started || held.expires_at <= now || held.generation != generation {
            return None;
        }
        held.started = true;
        Some(Report { id, started: true, generation, entry: held.entry.take() })
    }

    /// It got another slot and may be started again.
    pub(crate) fn put_back(&self, id: PermitId) {
        if let Some(held) = self.known().permits.get_mut(&id) {
            held.started = false;
        }
    }

    /// The permit is out of hand, used or not.
    pub(crate) fn end(&self, id: PermitId) -> Report {
        let mut known = self.known();
        let generation = known.generation_of(id.destination_id);
        match known.permits.remove(&id) {
            Some(held) => Report { id, started: false, generation: held.generation, entry: held.entry },
            None => Report { id, started: false, generation, entry: None },
        }
    }

    /// Forgets what concerns no permit any more.
    pub(crate) fn tidy(&self, now: Timestamp) {
        let before = now - REMEMBERED;
        let mut known = self.known();
        known.permits.retain(|_, held| held.expires_at > before);
        known.restraints.retain(|_, restraint| restraint.learnt_at > before || restraint.held_until > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn destination() -> DestinationId {
        DestinationId::from_bytes([1; 16])
    }

    fn received(serial: u64, generation: u64, version: u64) -> Received {
        let id = PermitId { destination_id: destination(), serial };
        let expires_at = NOW + Duration::from_secs(60);
        Received { id, generation, version, expires_at, entry: Some(format!("{serial}-0")) }
    }

    fn holding(serial: u64) -> (Hands, PermitId) {
        let hands = Hands::default();
        let received = received(serial, 5, 1);
        let id = received.id;
        assert!(hands.receive(received));
        (hands, id)
    }

    #[test]
    fn a_permit_is_started_once_and_again_after_another_slot() {
        let (hands, id) = holding(1);
        assert_eq!(hands.start(id, NOW, 0).and_then(|report| report.entry).as_deref(), Some("1-0"));
        assert_eq!(hands.start(id, NOW, 0), None);
        hands.put_back(id);
        assert_eq!(hands.start(id, NOW, 0).and_then(|report| report.entry), None, "its entry is gone already");
    }

    #[test]
    fn a_permit_that_comes_twice_is_used_once() {
        let (hands, _) = holding(1);
        assert!(!hands.receive(received(1, 5, 1)));
    }

    #[test]
    fn a_permit_of_an_ended_generation_is_not_started() {
        let (hands, id) = holding(1);
        assert!(hands.learn_generation(Shard::of(destination()), 6));
        assert_eq!(hands.start(id, NOW, 0), None);
        assert!(!hands.receive(received(2, 5, 1)));
        assert!(hands.receive(received(3, 6, 1)));
    }

    #[test]
    fn nothing_is_started_long_after_the_last_answer() {
        let (hands, id) = holding(1);
        let later = TRUSTED.as_nanos() as i64 + 1;
        assert_eq!(hands.start(id, NOW, later), None);
        hands.hear(Shard::of(destination()), 4, later);
        assert_eq!(hands.start(id, NOW, later), None, "a late answer of an ended generation is none");
        hands.hear(Shard::of(destination()), 5, later);
        assert!(hands.start(id, NOW, later).is_some());
    }

    #[test]
    fn expired_suspended_and_held_permits_are_not_started() {
        let (hands, id) = holding(1);
        assert_eq!(hands.start(id, NOW + Duration::from_secs(60), 0), None);
        hands.learn_suspension(destination(), 7, true, NOW);
        assert_eq!(hands.start(id, NOW, 0), None);
        hands.learn_suspension(destination(), 6, false, NOW);
        assert_eq!(hands.start(id, NOW, 0), None, "a late notice changes nothing");
        hands.learn_suspension(destination(), 8, false, NOW);
        hands.learn_hold(destination(), NOW + Duration::from_secs(1), NOW);
        assert_eq!(hands.start(id, NOW, 0), None);
        assert!(hands.start(id, NOW + Duration::from_secs(1), 0).is_some());
    }

    #[test]
    fn a_permit_that_came_straight_is_not_taken_in_hand_after_a_suspension() {
        let (hands, _) = holding(1);
        hands.learn_suspension(destination(), 7, true, NOW);
        assert!(!hands.receive(Received { entry: None, ..received(2, 5, 6) }));
        assert!(hands.receive(Received { entry: None, ..received(3, 5, 7) }));
    }

    #[test]
    fn a_permit_published_after_the_suspension_lifts_it() {
        let (hands, id) = holding(1);
        hands.learn_suspension(destination(), 7, true, NOW);
        hands.receive(received(2, 5, 6));
        assert_eq!(hands.start(id, NOW, 0), None);
        hands.receive(received(3, 5, 7));
        assert!(hands.start(id, NOW, 0).is_some());
    }

    #[test]
    fn what_concerns_no_permit_is_forgotten() {
        let (hands, id) = holding(1);
        hands.learn_suspension(destination(), 7, true, NOW);
        hands.tidy(NOW + REMEMBERED + Duration::from_secs(61));
        let known = hands.known();
        assert!(!known.permits.contains_key(&id) && known.restraints.is_empty());
    }
}
