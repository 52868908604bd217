//! A purge, step by step: each looks at a part of what waits for one destination and cancels what it is after.

use async_trait::async_trait;
use sqlx::PgConnection;
use weir_core::{DeliveryState, pattern::EventPattern};
use weir_store::{Purge, PurgePlace, PurgeStep};

use crate::{
    edits::Edit,
    rows::{count, delivery_id, state_code, time, uuid},
};

/// How many deliveries a step looks at: claims of the destination wait for its commit.
const STEP: i64 = 1_000;

/// What waits after a place is looked at in the order of the index; of that, what the purge is after is locked, unless
/// somebody else has it in hand, and cancelled. The lock sees to the state once more, as it is by then. `d.state + 0`, or the
/// planner could walk all that waits instead of looking up these. The type is asked for row by row, for the same reason.
macro_rules! purge {
    ($of_type:expr) => {
        concat!(
            "
WITH waiting AS MATERIALIZED (
    SELECT id, event_id, next_attempt_at FROM deliveries
    WHERE destination_id = $1 AND state IN (0, 2) AND (next_attempt_at, id) > ($2, $3)
    ORDER BY next_attempt_at, id LIMIT $4
), chosen AS MATERIALIZED (
    SELECT d.id FROM waiting w JOIN deliveries d ON d.id = w.id
    WHERE d.state + 0 = ANY($5) AND d.created_at < $6 ",
            $of_type,
            "
    FOR UPDATE OF d SKIP LOCKED
), cancelled AS (
    UPDATE deliveries d SET state = 6, updated_at = $7 FROM chosen WHERE d.id = chosen.id RETURNING 1
)
SELECT (SELECT count(*) FROM waiting), (SELECT count(*) FROM cancelled), w.next_attempt_at, w.id
FROM waiting w ORDER BY w.next_attempt_at DESC, w.id DESC LIMIT 1"
        )
    };
}

macro_rules! event_type {
    () => {
        "(SELECT e.event_type FROM events e WHERE e.id = w.event_id)"
    };
}

pub(crate) const PURGE: &str = purge!("");
pub(crate) const PURGE_ANY: &str = purge!(concat!("AND NOT starts_with(", event_type!(), ", 'weir.')"));
pub(crate) const PURGE_TYPE: &str = purge!(concat!("AND ", event_type!(), " = $8"));
pub(crate) const PURGE_PREFIX: &str = purge!(concat!("AND starts_with(", event_type!(), ", $8)"));

pub(crate) struct PurgeSome<'p> {
    pub(crate) purge: &'p Purge,
    pub(crate) after: Option<PurgePlace>,
}

#[async_trait]
impl Edit for PurgeSome<'_> {
    type Answer = PurgeStep;

    async fn run(&self, connection: &mut PgConnection) -> Result<PurgeStep, sqlx::Error> {
        let Purge { destination_id, event_type, before, now, .. } = self.purge;
        let (sql, of_type) = match event_type {
            None => (PURGE, None),
            Some(EventPattern::Any) => (PURGE_ANY, None),
            Some(EventPattern::Exact(exact)) => (PURGE_TYPE, Some(exact)),
            Some(EventPattern::Prefix(prefix)) => (PURGE_PREFIX, Some(prefix)),
        };
        let (due, id) = self.after.map_or((i64::MIN, [0; 16]), |place| (place.due.as_nanos(), *place.id.as_bytes()));
        let states = [DeliveryState::Pending, DeliveryState::Retrying].into_iter();
        let states: Vec<i16> = states.filter(|&state| self.purge.takes(state)).map(state_code).collect();
        let mut query = sqlx::query(sql)
            .bind(uuid(destination_id.as_bytes()))
            .bind(due)
            .bind(uuid(&id))
            .bind(STEP)
            .bind(states)
            .bind(before.as_nanos())
            .bind(now.as_nanos());
        if let Some(text) = of_type {
            query = query.bind(text);
        }
        let Some(row) = query.fetch_optional(connection).await? else {
            return Ok(PurgeStep { cancelled: 0, next: None });
        };
        let place = PurgePlace { due: time(&row, 2)?, id: delivery_id(&row, 3)? };
        let more = count(&row, 0)? == STEP.unsigned_abs();
        Ok(PurgeStep { cancelled: count(&row, 1)?, next: more.then_some(place) })
    }
}
