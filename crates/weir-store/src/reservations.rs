//! Slots of limit groups that callers outside Weir have taken.

use async_trait::async_trait;
use weir_core::{LimitGroupId, ReservationId, Timestamp, limit::RateLimit, reservation::Reservation};

use crate::{Page, PageRequest, SentCounts, StoreResult};

/// The answer to a cancellation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancelled {
    /// It is marked as given back, now or before.
    Done(Reservation),
    /// It started before the cancellation, so its call may have been made.
    Started(Reservation),
    Unknown,
}

#[async_trait]
pub trait Reservations: Send + Sync {
    /// Durable when it returns: only then the caller may be told of its slot.
    async fn add_reservations(&self, _new: &[Reservation]) -> StoreResult<()> {
        Ok(())
    }

    async fn reservation(&self, _id: ReservationId) -> StoreResult<Option<Reservation>> {
        Ok(None)
    }

    /// Marks a reservation of this group as given back, if it starts after `now`.
    async fn cancel_reservation(
        &self,
        _group: LimitGroupId,
        _id: ReservationId,
        _now: Timestamp,
    ) -> StoreResult<Cancelled> {
        Ok(Cancelled::Unknown)
    }

    /// The reservations of a group that end in `from..to`, newest first, cancelled ones included.
    async fn list_reservations(
        &self,
        _group: LimitGroupId,
        _from: Timestamp,
        _to: Timestamp,
        _page: PageRequest,
    ) -> StoreResult<Page<Reservation>> {
        Ok(Page { rows: Vec::new(), next: None })
    }

    /// Whether the group has given a reservation that ends at `since` or later. Cancelled ones count: the queue may not
    /// have given their slots back.
    async fn has_reserved(&self, _group: LimitGroupId, _since: Timestamp) -> StoreResult<bool> {
        Ok(false)
    }

    /// As [`crate::Outbox::sent_counts`], of the reservations of a group: each counts at its end. Cancelled ones do not
    /// count.
    async fn reserved_counts(
        &self,
        _group: LimitGroupId,
        _since: Timestamp,
        _limit: RateLimit,
    ) -> StoreResult<SentCounts> {
        Ok(SentCounts::default())
    }
}
