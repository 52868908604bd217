//! Discards: dead letters that nobody will send again are settled.
//!
//! A discarded delivery is `cancelled`: it is a dead letter no more, and its attempts stay. A discard runs in steps. Each
//! reads the next dead letters that match, as a list does, and settles them in one short transaction.

use weir_core::{DeliveryId, DeliveryState, Timestamp, activity::Activity};

use crate::{DeliveryFilter, ListOrder, Lists, PageRequest, Results, StoreResult};

/// The states of a dead letter.
pub const DISCARDABLE: [DeliveryState; 2] = [DeliveryState::Failed, DeliveryState::Dead];
/// The most dead letters that one step settles: about 10 ms of the store's time, because claims and events wait for it.
pub const DISCARDED_AT_ONCE: u32 = 500;

/// Discards the dead letters that match, in the states that the filter names. Returns how many. If a step fails, those of
/// earlier steps stay discarded. All steps share one activity, which counts what they have discarded.
pub async fn discard<S: Lists + Results + ?Sized>(
    store: &S,
    filter: DeliveryFilter,
    now: Timestamp,
    activity: Activity,
) -> StoreResult<u64> {
    // The oldest first: what becomes a dead letter meanwhile does not move the pages.
    let filter = DeliveryFilter { order: ListOrder::Oldest, ..filter };
    let (mut discarded, mut before) = (0, None);
    loop {
        let page = store.list_deliveries(&filter, PageRequest { before, limit: DISCARDED_AT_ONCE }).await?;
        let ids: Vec<DeliveryId> = page.rows.iter().map(|delivery| delivery.id).collect();
        if !ids.is_empty() {
            discarded += store.discard_deliveries(ids, now, &activity, discarded).await?;
        }
        match page.next {
            Some(next) => before = Some(next),
            None => return Ok(discarded),
        }
    }
}
