//! The days with partitions. Events and attempts have partitions for the same days.
//!
//! The partitions of the next days are made in advance, at the start and by the sweep. If the day of an event is still
//! missing (a wrong clock, a suspended process), ingest makes it before it stores the event, so that every time is in
//! range.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use sqlx::PgConnection;
use weir_core::Timestamp;

/// Days since the Unix epoch.
pub(crate) type Day = i32;

/// How many days after today have partitions, and how many days before it, for clocks that are slow.
const AHEAD: Day = 7;
const BEHIND: Day = 1;

pub(crate) const MILLIS_PER_DAY: i64 = 86_400_000;

const MAKE_PARTITIONS: &str = "SELECT make_partitions($1)";

/// The days known to have partitions.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    known: Mutex<BTreeSet<Day>>,
}

/// The day on which an id was made, from its first 48 bits, which are milliseconds.
pub(crate) fn day_of_id(id: &[u8; 16]) -> Day {
    let millis = id[..6].iter().fold(0i64, |millis, &byte| millis << 8 | i64::from(byte));
    (millis / MILLIS_PER_DAY) as Day
}

pub(crate) fn day_of(time: Timestamp) -> Day {
    time.as_millis().div_euclid(MILLIS_PER_DAY) as Day
}

/// Today, and the days around it that should have partitions.
pub(crate) fn days_around(now: Timestamp) -> impl Iterator<Item = Day> {
    let today = day_of(now);
    (today - BEHIND).max(0)..=today + AHEAD
}

impl Partitions {
    /// Makes the missing partitions of these days. Costs nothing if all of them are known.
    pub(crate) async fn ensure(
        &self,
        connection: &mut PgConnection,
        days: impl Iterator<Item = Day>,
    ) -> Result<(), sqlx::Error> {
        // The block releases the lock before the statement. Two callers may name one day: only what is missing is made.
        let missing: BTreeSet<Day> = {
            let known = self.known.lock();
            days.filter(|day| !known.contains(day)).collect()
        };
        if !missing.is_empty() {
            let days: Vec<Day> = missing.iter().copied().collect();
            sqlx::query(MAKE_PARTITIONS).bind(days).execute(connection).await?;
            self.known.lock().extend(missing);
        }
        Ok(())
    }

    /// Clears the known days, because another process has dropped a partition.
    pub(crate) fn forget(&self) {
        self.known.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use weir_core::EventId;

    use super::*;

    #[test]
    fn the_day_of_an_id_is_the_day_of_its_time() {
        for (secs, day) in [(0, 0), (86_399, 0), (86_400, 1), (1_800_000_000, 20_833)] {
            let id = EventId::new(Timestamp::from_secs(secs), u128::MAX);
            assert_eq!(day_of_id(id.as_bytes()), day, "{secs}");
        }
    }

    #[test]
    fn partitions_are_made_days_before_they_are_needed() {
        let days: Vec<Day> = days_around(Timestamp::from_secs(1_800_000_000)).collect();
        assert_eq!((days.first(), days.last()), (Some(&20_832), Some(&20_840)));
    }
}
