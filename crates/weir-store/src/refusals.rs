//! Looks for refusals within the limit ([`weir_core::refusals`]) in the recorded sends, and for receivers that refuse much
//! ([`weir_core::refusing`]) in the counters.
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
    adaptive::{Observation, Stretch},
    refusals::{FEWEST, JudgedSend, Refusals, diagnose},
    refusing::{COUNTED, Refusing},
};

use crate::{RecentTraffic, RefusalStore, SendsRequest, StoreResult, TRAFFIC_BUCKET, Traffic};

/// How far back refusals are looked for: a few windows of a minute. So refusals are over when none was seen for this
/// time.
const LOOKED_BACK: Duration = Duration::from_secs(300);
/// The most sends that are read of one destination: enough for shares of a percent, in some milliseconds.
const SENDS_READ: u32 = 1_000;
/// The shortest time between two looks, and of how many destinations one look reads sends.
const EVERY: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 8;
/// Of how many destinations one statement reads counters.
const COUNTED_AT_ONCE: usize = 256;

/// The refusals within the limit among the recent sends of a destination, if there are some. Reads at most
/// `SENDS_READ` sends, none of them from before the last edit. An adaptive destination finds its pace by refusals, so they are
/// no fault of its limits.
pub async fn refusals_of(
    store: &dyn RefusalStore,
    destination: &Destination,
    now: Timestamp,
) -> StoreResult<Option<Refusals>> {
    if destination.settings.adaptive.is_some() {
        return Ok(None);
    }
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

/// What a receiver has answered, by its traffic in buckets.
fn refusing_by(buckets: &[(Timestamp, Traffic)], now: Timestamp) -> Refusing {
    let sum = |of: fn(&Traffic) -> u64| buckets.iter().map(|(_, traffic)| of(traffic)).sum();
    // The sends may have begun in the middle of their first bucket, and the last one has not ended.
    let sent = buckets.iter().skip_while(|(_, traffic)| traffic.sends == 0);
    let whole = sent.skip(1).filter(|(at, _)| *at + TRAFFIC_BUCKET <= now);
    let stretches = whole
        .map(|(_, traffic)| Stretch { attempted: traffic.delivered + traffic.throttled, taken: traffic.delivered });
    Refusing::new(sum(|traffic| traffic.sends), sum(|traffic| traffic.throttled), Observation::of(stretches, true))
}

/// What was found of the destinations that were looked at.
#[derive(Debug, Clone, Default)]
pub struct RefusalWatch {
    looked_at: Option<Timestamp>,
    known: HashMap<DestinationId, (Timestamp, Option<Refusals>)>,
    /// What receivers have answered that refuse, or did of late.
    answered: HashMap<DestinationId, Refusing>,
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

    /// Counts what receivers have answered: those that refused something in the last minute, of which this is the traffic, those
    /// that refused much at the last look, and `alerted`.
    pub async fn count(
        &mut self,
        store: &dyn RefusalStore,
        last_minute: &HashMap<DestinationId, RecentTraffic>,
        alerted: impl Iterator<Item = DestinationId>,
        now: Timestamp,
    ) -> StoreResult<()> {
        let refusing = last_minute.iter().filter(|(_, traffic)| traffic.sum.throttled > 0).map(|(id, _)| *id);
        let alerted: HashSet<_> = alerted.chain(self.refusing()).collect();
        let ids: Vec<_> = alerted.iter().copied().chain(refusing.filter(|id| !alerted.contains(id))).collect();
        // Of a receiver that is not sent to at all there are no rows.
        self.answered = ids.iter().map(|id| (*id, Refusing::default())).collect();
        for ids in ids.chunks(COUNTED_AT_ONCE) {
            let counted = store.traffic_of(ids, now.before(COUNTED).floor(TRAFFIC_BUCKET), TRAFFIC_BUCKET).await?;
            self.answered.extend(counted.iter().map(|(id, buckets)| (*id, refusing_by(buckets, now))));
        }
        Ok(())
    }

    /// The destinations whose receivers refuse much, or did and are still near that.
    pub fn refusing(&self) -> impl Iterator<Item = DestinationId> {
        self.answered.iter().filter(|(_, answered)| answered.is_still_much()).map(|(id, _)| *id)
    }

    /// For `refusing` of [`weir_core::alert::DestinationStatus`].
    pub fn answered(&self, id: DestinationId) -> Option<Refusing> {
        self.answered.get(&id).copied()
    }

    /// What was found, with the present settings of the destination. `None`: it was not looked at.
    pub fn found(&self, destination: &Destination) -> Option<Option<Refusals>> {
        if destination.settings.adaptive.is_some() {
            return Some(None);
        }
        let (at, found) = self.known.get(&destination.id)?;
        (*at > destination.updated_at).then_some(*found)
    }
}
