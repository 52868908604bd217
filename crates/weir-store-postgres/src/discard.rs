//! One step of a discard: the dead letters among some deliveries become `cancelled`.

use sqlx::{Connection as _, PgConnection};
use weir_core::{DeliveryId, Timestamp, activity::Activity};
use weir_store::sql;

use crate::{activity::record, rows::uuid};

/// Rows that are locked are skipped: a retry or a replay makes them wait again. The lock checks the state again.
/// `d.state + 0` makes the planner look up the given ids; with `d.state` it could scan all dead letters.
pub(crate) const DISCARD: &str = sql!(
    "WITH chosen AS MATERIALIZED (
    SELECT d.id FROM deliveries d WHERE d.id = ANY($1) AND d.state + 0 IN ({failed}, {dead})
    ORDER BY d.id FOR UPDATE OF d SKIP LOCKED
)
UPDATE deliveries d SET state = {cancelled}, updated_at = $2 FROM chosen WHERE d.id = chosen.id"
);

pub(crate) async fn discard(
    connection: &mut PgConnection,
    ids: &[DeliveryId],
    now: Timestamp,
    activity: &Activity,
    before: u64,
) -> Result<u64, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let ids: Vec<_> = ids.iter().map(|id| uuid(id.as_bytes())).collect();
    let settled = sqlx::query(DISCARD).bind(ids).bind(now.as_nanos()).execute(&mut *transaction).await?;
    let discarded = settled.rows_affected();
    if discarded > 0 {
        record(&mut transaction, &activity.clone().with_discarded(before + discarded)).await?;
    }
    transaction.commit().await?;
    Ok(discarded)
}
