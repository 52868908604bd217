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
/// What is known of one destination.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    dry_at: Timestamp,
    overflowed_at: Timestamp,
    /// A new delivery had to wait in the store since it was dry.
    overflowed: bool,
}

impl Feed {
    /// Whether new deliveries may join.
    pub(crate) fn is_dry(&self, now: Timestamp) -> bool {
        self.dry_at > self.overflowed_at && now < self.dry_at + DRY_FOR
    }

    /// Whether it is time to look into the store, for as long as new deliveries join.
    pub(crate) fn is_unlooked(&self, now: Timestamp) -> bool {
        self.is_dry(now) && self.dry_at + LOOK_AFTER <= now
    }

    /// The queue knows of no backlog: the store is dry, unless a new delivery had to wait since.
    pub(crate) fn no_backlog(&mut self, now: Timestamp) {
        if !self.overflowed {
            self.dry_at = now;
        }
    }

    /// A claim that began then found nothing more.
    pub(crate) fn found_dry(&mut self, at: Timestamp) {
        self.dry_at = self.dry_at.max(at);
        self.overflowed &= self.dry_at <= self.overflowed_at;
    }

    /// A claim that began then left more in the store, or may have.
    pub(crate) fn found_more(&mut self, at: Timestamp) {
        self.overflowed_at = self.overflowed_at.max(at);
    }

    /// A new delivery has to wait in the store.
    pub(crate) fn overflows(&mut self, now: Timestamp) {
        self.overflowed_at = now;
        self.overflowed = true;
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
        assert!(!feed.is_dry(later(1)));
        feed.found_dry(later(1));
        feed.no_backlog(later(2));
        assert!(!feed.is_dry(later(2)), "it may have been stored after that claim looked");
        feed.found_dry(later(3));
        assert!(feed.is_dry(later(3)));
        feed.no_backlog(later(4));
        assert!(feed.is_dry(later(103)));
    }

    #[test]
    fn none_join_once_a_look_has_found_something() {
        let mut feed = Feed::default();
        feed.found_dry(NOW);
        feed.found_more(later(40));
        assert!(!feed.is_dry(later(40)) && !feed.is_unlooked(later(40)));
        feed.found_dry(later(50));
        assert!(feed.is_dry(later(50)));
    }
}
