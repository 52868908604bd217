//! Recovery of abandoned claims: claims that have expired, and claims that the caller names.

use sqlx::{Connection as _, PgConnection, postgres::PgRow};
use weir_core::{Timestamp, claim::Claim, retry::RetryPolicy};
use weir_sealing::Keyring;
use weir_store::{
    AbandonedClaim, AttemptResult, Recovered,
    rows::{self, Row as _},
    sql,
};

use crate::{
    results::settle_all,
    rows::{Read, column, uuid},
};

/// Reads and locks claims, with the retry policies that decide the next states of their deliveries. Several processes
/// may recover claims at the same time: rows that another one has locked are skipped.
const ABANDONED: &str = "
SELECT d.id, d.destination_id, d.claim_epoch, d.attempts, coalesce(d.attempts_before, 0), (
    SELECT t.retry FROM destinations t WHERE t.id = d.destination_id AND t.deleted_at IS NULL
)
FROM {claims} FOR UPDATE OF d SKIP LOCKED";

/// There are only as many outstanding claims as sends in flight, so all of them may be read.
pub(crate) const EXPIRED: &str =
    sql!(ABANDONED, &[("claims", "deliveries d WHERE d.state = {delivering} AND d.claim_expires_at <= $1 LIMIT $2")]);

/// `state + 0` makes the planner look up the given deliveries; with `state` it could scan all claims.
pub(crate) const NAMED: &str = sql!(
    ABANDONED,
    &[(
        "claims",
        "unnest($1::uuid[], $2::bigint[]) AS r (id, epoch) JOIN deliveries d ON d.id = r.id
WHERE d.claim_epoch = r.epoch AND d.state + 0 = {delivering}"
    )]
);

/// The claims to resolve with an unknown outcome.
pub(crate) enum Abandoned {
    /// Those that expire at this instant or before it.
    Expired {
        until: Timestamp,
        limit: u32,
    },
    Named(Vec<Claim>),
}

/// Resolves abandoned claims as attempts of unknown outcome.
pub(crate) async fn recover(
    connection: &mut PgConnection,
    abandoned: &Abandoned,
    now: Timestamp,
) -> Result<Recovered, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    // Lock the claims, so that no late result settles them meanwhile.
    let query = match abandoned {
        Abandoned::Expired { until, limit } => sqlx::query(EXPIRED).bind(until.as_nanos()).bind(i64::from(*limit)),
        Abandoned::Named(claims) => sqlx::query(NAMED)
            .bind(column(claims, |claim| uuid(claim.delivery_id.as_bytes())))
            .bind(column(claims, |claim| claim.epoch)),
    };
    let rows = query.fetch_all(&mut *transaction).await?;
    // Each was an attempt of unknown outcome: the request may have been sent, so it counts.
    let results: Result<Vec<AttemptResult>, sqlx::Error> =
        rows.iter().map(|row| Ok(read_abandoned(row)?.unknown_outcome(now))).collect();
    // Unknown outcomes have no answer that would be sealed.
    let settled = settle_all(&results?.iter().collect::<Vec<_>>(), &mut transaction, &Keyring::default()).await?;
    transaction.commit().await?;
    Ok(Recovered::of(&settled.advance(connection).await))
}

fn read_abandoned(row: &PgRow) -> Read<AbandonedClaim> {
    let max_attempts = |text: &str| Some(serde_json::from_str::<RetryPolicy>(text).ok()?.max_attempts);
    Ok(AbandonedClaim {
        claim: rows::claim(row)?,
        attempts: row.small(3)?,
        attempts_before: row.small(4)?,
        max_attempts: row.optionally_parsed(5, "a retry policy", max_attempts)?,
    })
}
