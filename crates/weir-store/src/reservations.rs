//! Slots of limit groups that callers outside Weir have taken.

use std::time::Duration;

use async_trait::async_trait;
use weir_core::{
    LimitGroupId, ReservationId, Timestamp, limit::RateLimit, reservation::Reservation, retention::Cutoffs,
};

use crate::{Page, PageRequest, SentCounts, StoreResult};

/// Reservations are kept at least this long, whatever the retention: the longest window, a day, and an hour more for
/// waits, widths and clocks that differ.
const KEPT: Duration = Duration::from_secs(25 * 3_600);

/// The answer to a cancellation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancelled {
    /// It is marked as given back, by this call.
    Now(Reservation),
    /// It was marked before.
    Before(Reservation),
    /// It started before the cancellation, so its call may have been made.
    Started(Reservation),
    Unknown,
}

impl Cancelled {
    /// Decides over a reservation as it was before the cancellation.
    pub fn decide(found: Option<Reservation>, group: LimitGroupId, now: Timestamp) -> Self {
        match found.filter(|found| found.group == group) {
            None => Self::Unknown,
            Some(found) if found.cancelled_at.is_some() => Self::Before(found),
            Some(found) if found.starts_at <= now => Self::Started(found),
            Some(found) => Self::Now(Reservation { cancelled_at: Some(now), ..found }),
        }
    }
}

#[async_trait]
pub trait Reservations: Send + Sync {
    /// Durable when it returns: only then the caller may be told of its slot.
    async fn add_reservations(&self, new: &[Reservation]) -> StoreResult<()>;

    async fn reservation(&self, id: ReservationId) -> StoreResult<Option<Reservation>>;

    /// Marks a reservation of this group as given back, if it starts after `now`.
    async fn cancel_reservation(
        &self,
        group: LimitGroupId,
        id: ReservationId,
        now: Timestamp,
    ) -> StoreResult<Cancelled>;

    /// The reservations of a group that end in `from..to`, those that end last first, cancelled ones included.
    async fn list_reservations(
        &self,
        group: LimitGroupId,
        from: Timestamp,
        to: Timestamp,
        page: PageRequest,
    ) -> StoreResult<Page<Reservation>>;

    /// The reservations of a group that end after this end and id and before `to`, those that end first first, without
    /// cancelled ones. At most `limit`.
    async fn reserved_after(
        &self,
        group: LimitGroupId,
        after: (Timestamp, ReservationId),
        to: Timestamp,
        limit: u32,
    ) -> StoreResult<Vec<Reservation>>;

    /// Deletes some reservations that were made before this instant. Returns how many; 0 when none is left.
    async fn prune_reservations(&self, before: Timestamp) -> StoreResult<u64>;
}

/// What a limit group has given to callers, for cursors and counts.
#[async_trait]
pub trait ReservedSlots: Send + Sync {
    /// Whether the group has given a reservation that ends at `since` or later. Cancelled ones count: the queue may not
    /// have given their slots back. A restored store may not know one, so it answers `true` up to its mark.
    async fn has_reserved(&self, group: LimitGroupId, since: Timestamp) -> StoreResult<bool>;

    /// As [`crate::Outbox::sent_counts`], of the reservations of a group: each counts at its end. Cancelled ones do not
    /// count.
    async fn reserved_counts(&self, group: LimitGroupId, since: Timestamp, limit: RateLimit)
    -> StoreResult<SentCounts>;
}

/// The instant before which reservations are deleted: as attempts of delivered deliveries, but none that a window may
/// still count. `None`: none are.
pub fn reservations_before(cutoffs: &Cutoffs, now: Timestamp) -> Option<Timestamp> {
    cutoffs.delivered.map(|before| before.min(now.before(KEPT)))
}

/// Where a page of [`Reservations::list_reservations`] begins: below this end and id.
pub fn reservations_below(to: Timestamp, last: Option<&Reservation>) -> (Timestamp, [u8; 16]) {
    last.map_or((to, [0; 16]), |last| (last.ends_at, *last.id.as_bytes()))
}

#[cfg(test)]
mod tests {
    use weir_core::retention::Retention;

    use super::*;

    #[test]
    fn reservations_are_kept_as_attempts_and_for_the_longest_window() {
        let now = Timestamp::from_secs(1_800_000_000);
        let before = |days: Option<u32>| {
            let delivered = days.map(|days| Duration::from_secs(86_400) * days);
            reservations_before(&Retention { delivered, ..Retention::default() }.cutoffs(now), now)
        };
        assert_eq!(before(Some(14)), Some(now.before(Duration::from_secs(14 * 86_400))));
        assert_eq!(before(Some(1)), Some(now.before(KEPT)));
        assert_eq!(before(None), None);
    }
}
