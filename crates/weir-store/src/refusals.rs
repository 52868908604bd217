//! Looks for refusals within the limit ([`weir_core::refusals`]) in the recorded sends.
//!
//! The traffic of the last minute, which is counted in any case, says which destinations have failed attempts. Only
//! those are looked at, a few at a time, so an installation with thousands of refusing destinations costs what one with
//! a few costs; each of them is only looked at less often.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use weir_core::{
    Destination, DestinationId, Timestamp,
    refusals::{FEWEST, JudgedSend, Refusals, diagnose},
};

use crate::{RefusalStore, SendsRequest, StoreResult, TRAFFIC_BUCKET};

/// How far back refusals are looked for: a few windows of a minute. So refusals are over when none was seen for this
/// time.
const LOOKED_BACK: Duration = Duration::from_secs(300);
/// The most sends that are read of one destination: enough for shares of a percent, in some milliseconds.
const SENDS_READ: u32 = 1_000;
/// The shortest time between two looks, and how many destinations one look reads.
const EVERY: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 8;

/// The refusals within the limit among the recent sends of a destination, if there are some. Reads at most
/// `SENDS_READ` sends, none of them from before the last edit.
pub async fn refusals_of(
    store: &dyn RefusalStore,
    destination: &Destination,
    now: Timestamp,
) -> StoreResult<Option<Refusals>> {
    // The counters say whether there is anything to read, and for how long as many sends as are read take.
    let to = now.floor(TRAFFIC_BUCKET) + TRAFFIC_BUCKET;
    let from = now.before(LOOKED_BACK).floor(TRAFFIC_BUCKET);
    let history = store.traffic(destination.id, from, to, TRAFFIC_BUCKET).await?;
    let failed: u64 = history.buckets.iter().map(|(_, traffic)| traffic.failed).sum();
    let Some(busiest) = history.buckets.iter().map(|(_, traffic)| traffic.sends).max() else { return Ok(None) };
    if failed < FEWEST as u64 {
        return Ok(None);
    }
    let last = history.buckets.last().map_or(now, |(at, _)| (*at + TRAFFIC_BUCKET).min(now));
    let span = TRAFFIC_BUCKET.mul_f64(f64::from(SENDS_READ) / busiest.max(1) as f64).min(LOOKED_BACK);
    // Since the last edit, or the end of an override.
    let ended = destination.temporary.overridden.as_ref().map(|of| of.until).filter(|at| *at <= now);
    let changed_at = ended.map_or(destination.updated_at, |at| at.max(destination.updated_at));
    let from = last.before(span).max(now.before(LOOKED_BACK)).max(changed_at);
    let request = SendsRequest { destination_id: destination.id, from, to, after: None, limit: SENDS_READ };
    let sends = store.sends(request).await?;
    // A send of unknown outcome has no exact instant.
    let known = sends.iter().filter(|send| !send.is_unknown);
    let sends: Vec<_> =
        known.map(|send| JudgedSend { at: send.position.sent_at, is_refused: send.is_refused }).collect();
    Ok(diagnose(&destination.at(now).settings.rate_limits, &sends))
}

/// What was found of the destinations that were looked at.
#[derive(Debug, Clone, Default)]
pub struct RefusalWatch {
    looked_at: Option<Timestamp>,
    known: HashMap<DestinationId, (Timestamp, Option<Refusals>)>,
}

impl RefusalWatch {
    /// Whether this many failed attempts in the last minute are worth a look.
    pub fn is_suspect(failed: u64) -> bool {
        failed >= FEWEST as u64
    }

    /// Whether it is time for another look.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.looked_at.is_none_or(|at| now.since(at) >= EVERY)
    }

    /// The destinations with refusals, which must be looked at until these have ended.
    pub fn refused(&self) -> HashSet<DestinationId> {
        self.known.iter().filter(|(_, (_, found))| found.is_some()).map(|(id, _)| *id).collect()
    }

    /// Looks at some of the suspects, first at those that it has not seen for longest. The others that are known are
    /// forgotten: nothing fails there.
    pub async fn look(
        &mut self,
        store: &dyn RefusalStore,
        mut suspects: Vec<Arc<Destination>>,
        now: Timestamp,
    ) -> StoreResult<()> {
        self.looked_at = Some(now);
        let ids: HashSet<_> = suspects.iter().map(|destination| destination.id).collect();
        self.known.retain(|id, _| ids.contains(id));
        suspects.sort_by_key(|destination| (self.known.get(&destination.id).map(|(at, _)| *at), destination.id));
        for destination in suspects.iter().take(AT_ONCE) {
            let found = refusals_of(store, destination, now).await?;
            self.known.insert(destination.id, (now, found));
        }
        Ok(())
    }

    /// What was found, with the present settings of the destination. `None`: it was not looked at. An adaptive destination
    /// finds its pace by refusals, so they are no fault of its limits.
    pub fn found(&self, destination: &Destination) -> Option<Option<Refusals>> {
        if destination.settings.adaptive.is_some() {
            return Some(None);
        }
        let (at, found) = self.known.get(&destination.id)?;
        (*at > destination.updated_at).then_some(*found)
    }
}
