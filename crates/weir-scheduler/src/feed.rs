//! Whether new deliveries of a destination may join what its runs have in hand, or must wait in the store.
//!
//! What is in hand goes first. Were new deliveries to join it for ever, nothing that waits in the store would have its turn. So they
//! may while the store is *dry*: the last claim found nothing more there, a moment ago. One that must wait there after all
//! (an *overflow*) keeps all behind it from joining, until a claim that began later comes back short.

use std::time::Duration;

use weir_core::Timestamp;

/// How long the store is taken to be dry after a look: what another process put there waits no longer than that.
const DRY_FOR: Duration = Duration::from_millis(100);
/// After so much of it a run looks again, so that new deliveries go on joining meanwhile.
const LOOK_AFTER: Duration = Duration::from_millis(40);
/// More than this many new deliveries in the store are a backlog, which no intake waits for.
const MOST_OVERFLOW: usize = 8_192;

/// What is known of one destination.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    dry_at: Timestamp,
    overflowed_at: Timestamp,
    /// How many new deliveries had to wait in the store since it was dry.
    overflow: usize,
    /// How many of them are being stored, so that no look finds them yet.
    storing: usize,
}

impl Feed {
    /// Whether new deliveries may join.
    pub(crate) fn is_dry(&self, now: Timestamp) -> bool {
        self.storing == 0 && self.dry_at > self.overflowed_at && now < self.dry_at + DRY_FOR
    }

    /// Whether it is time to look into the store, for as long as new deliveries join.
    pub(crate) fn is_unlooked(&self, now: Timestamp) -> bool {
        self.is_dry(now) && self.dry_at + LOOK_AFTER <= now
    }

    /// Whether the few that wait in the store will be claimed in a moment, after which new ones may join again.
    pub(crate) fn dries_soon(&self, now: Timestamp) -> bool {
        !self.is_dry(now) && (1..=MOST_OVERFLOW).contains(&self.overflow)
    }

    /// The queue knows of no backlog: the store is dry, unless a new delivery had to wait since.
    pub(crate) fn no_backlog(&mut self, now: Timestamp) {
        if self.overflow == 0 {
            self.dry_at = now;
        }
    }

    /// A claim that began then found nothing more.
    pub(crate) fn found_dry(&mut self, at: Timestamp) {
        self.dry_at = self.dry_at.max(at);
        if self.dry_at > self.overflowed_at && self.storing == 0 {
            self.overflow = 0;
        }
    }

    /// A claim that began then left more in the store, or may have.
    pub(crate) fn found_more(&mut self, at: Timestamp) {
        self.overflowed_at = self.overflowed_at.max(at);
    }

    /// A new delivery has to wait in the store.
    pub(crate) fn overflows(&mut self, now: Timestamp) {
        self.overflowed_at = now;
        self.overflow += 1;
        self.storing += 1;
    }

    /// It does so by now. It may be of before this was kept.
    pub(crate) fn stored(&mut self, now: Timestamp) {
        self.overflowed_at = now;
        self.storing = self.storing.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn later(ms: u64) -> Timestamp {
        NOW + Duration::from_millis(ms)
    }

    #[test]
    fn new_deliveries_join_for_a_moment_after_each_look_that_found_nothing() {
        let mut feed = Feed::default();
        assert!(!feed.is_dry(NOW), "nothing is known");
        feed.found_dry(NOW);
        assert!(feed.is_dry(later(99)) && !feed.is_dry(later(100)));
        assert!(!feed.is_unlooked(later(39)) && feed.is_unlooked(later(40)));
        assert!(!feed.is_unlooked(later(100)), "none join, so nothing urges to look");
        feed.found_dry(later(60));
        assert!(feed.is_dry(later(159)));
    }

    #[test]
    fn after_an_overflow_none_join_until_a_claim_that_began_later_finds_nothing() {
        let mut feed = Feed::default();
        feed.no_backlog(NOW);
        feed.overflows(later(1));
        feed.stored(later(1));
        assert!(!feed.is_dry(later(1)) && feed.dries_soon(later(1)));
        feed.found_dry(later(1));
        feed.no_backlog(later(2));
        assert!(!feed.is_dry(later(2)), "it may have been stored after that claim looked");
        feed.found_dry(later(3));
        assert!(feed.is_dry(later(3)) && !feed.dries_soon(later(3)));
        feed.no_backlog(later(4));
        assert!(feed.is_dry(later(103)));
    }

    #[test]
    fn a_look_does_not_find_what_is_being_stored() {
        let mut feed = Feed::default();
        feed.no_backlog(NOW);
        feed.overflows(later(1));
        feed.overflows(later(1));
        feed.found_dry(later(2));
        assert!(!feed.is_dry(later(2)) && feed.dries_soon(later(2)));
        feed.stored(later(3));
        feed.stored(later(4));
        feed.found_dry(later(4));
        assert!(!feed.is_dry(later(4)), "the claim may have begun before the commit");
        feed.found_dry(later(5));
        assert!(feed.is_dry(later(5)) && !feed.dries_soon(later(5)));
        feed.stored(later(6));
        assert!(!feed.is_dry(later(6)), "one of which this did not know");
        feed.found_dry(later(7));
        assert!(feed.is_dry(later(7)));
    }

    #[test]
    fn none_join_once_a_look_has_found_something() {
        let mut feed = Feed::default();
        feed.found_dry(NOW);
        feed.found_more(later(40));
        assert!(!feed.is_dry(later(40)) && !feed.is_unlooked(later(40)));
        assert!(!feed.dries_soon(later(40)), "nobody knows how much it is");
        feed.found_dry(later(50));
        assert!(feed.is_dry(later(50)));
    }

    #[test]
    fn a_backlog_is_not_waited_for() {
        let mut feed = Feed::default();
        (0..MOST_OVERFLOW).for_each(|_| feed.overflows(NOW));
        assert!(feed.dries_soon(NOW));
        feed.overflows(NOW);
        assert!(!feed.dries_soon(NOW));
    }
}
