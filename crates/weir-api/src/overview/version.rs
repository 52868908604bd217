//! The version of some rows: a viewer that knows it reads them again only after a change.
//!
//! Time alone changes no version. So an age counts as the instant at which it began, and the end of a hold as an instant
//! too: whoever shows them counts on. An average over the last minute does change with time, until it is zero.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use weir_core::{Condition, DeliveryState, Timestamp};

use super::row::Row;
use crate::figures::Figures;

/// A text that is another one for other figures. `also` is any further number.
pub(super) fn of(rows: &[&Row], now: Timestamp, also: Option<u64>) -> String {
    let mut hasher = DefaultHasher::new();
    also.hash(&mut hasher);
    for row in rows {
        hash(row, now, &mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

fn hash(Row { destination, figures }: &Row, now: Timestamp, hasher: &mut DefaultHasher) {
    destination.id.as_bytes().hash(hasher);
    destination.version(now).as_nanos().hash(hasher);
    destination.settings.paused.hash(hasher);
    destination.paused_reason.hash(hasher);
    let is_held = destination.is(Condition::Held, now);
    is_held.then(|| destination.held()).map(|(until, reason)| (until.map(Timestamp::as_nanos), reason)).hash(hasher);
    destination.breaker.state(now).as_str().hash(hasher);
    destination.breaker.reason().hash(hasher);
    destination.breaker.next_probe_at().map(Timestamp::as_nanos).hash(hasher);
    let Figures { counts, .. } = figures;
    DeliveryState::ALL.map(|state| counts.of(state)).hash(hasher);
    figures.oldest_age.map(|age| now.before(age).as_nanos()).hash(hasher);
    let rates = [figures.configured_per_s, figures.effective_per_s, figures.utilisation];
    rates.map(|rate| rate.map(thousandths)).hash(hasher);
    [figures.achieved_per_s, figures.arrivals_per_s].map(thousandths).hash(hasher);
    // The time until a held backlog has drained becomes shorter with the hold.
    let drain = figures.drain_eta.map(|eta| if is_held { (now + eta).as_secs() } else { eta.as_secs() as i64 });
    (drain, figures.drains, figures.reason.map(|reason| reason.as_str())).hash(hasher);
    // The pace itself is in the rates.
    figures.pace.as_ref().map(|pace| (pace.reason.to_string(), pace.since.as_nanos(), &pace.detail)).hash(hasher);
    figures.refusals.map(|refusals| format!("{refusals:?}")).hash(hasher);
}

fn thousandths(value: f64) -> i64 {
    (value * 1_000.0).round() as i64
}
