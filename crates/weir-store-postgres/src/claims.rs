//! Claims: the deliveries of many destinations in one statement, with their bodies and what is due next.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, postgres::PgRow};
use weir_core::{
    DestinationId, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
};
use weir_store::{ClaimRequest, Claims};

use crate::{
    Shared,
    ingest::column,
    rows::{self, corrupt, delivery_id, event_id, int, optional_time, small, time, uuid},
    writer::Operation,
};

/// One look per destination: its oldest due deliveries, found by its part of the due index and bounded by LIMIT, so a long
/// backlog costs no more than a short one and no destination stands in the way of another. Materialized, or the planner could
/// run the look again for each row that it updates, and claim more than the limit.
///
/// The look locks nothing, since a lock would write each row once more. Two processes claim the same rows only when a lease
/// has ended before its run; then the later one waits, finds them gone, and comes back short. The other's publication is stale, so
/// it gives back what it took, and wakes.
///
/// What is due next comes with it, for each request: the first after `after`, which is the present, since everything due by
/// then is claimed by this statement or by another. Should that other fail, the sweep finds what it left.
pub(crate) const CLAIM: &str = "
WITH request AS MATERIALIZED (
    SELECT r.* FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
        AS r (destination_id, most, now, after, expires_at, request)
    JOIN destinations t ON t.id = r.destination_id AND NOT t.paused AND t.deleted_at IS NULL
), due AS MATERIALIZED (
    SELECT r.request, r.now, r.expires_at, d.id
    FROM request r CROSS JOIN LATERAL (
        SELECT id FROM deliveries
        WHERE destination_id = r.destination_id AND state IN (0, 2) AND next_attempt_at <= r.now
        ORDER BY next_attempt_at, id LIMIT r.most
    ) d
), claimed AS (
    UPDATE deliveries d
    SET state = 1, claim_epoch = claim_epoch + 1, claim_expires_at = due.expires_at, updated_at = due.now
    FROM due WHERE d.id = due.id AND d.state + 0 IN (0, 2)
    RETURNING due.request, d.id, d.event_id, d.claim_epoch, d.attempts, d.created_at, d.next_attempt_at
)
SELECT c.request, c.next_attempt_at, c.id, c.event_id, c.claim_epoch, c.attempts, c.created_at, e.data_offset, e.body
FROM claimed c JOIN events e ON e.id = c.event_id
UNION ALL
SELECT r.request, next.next_attempt_at, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM request r CROSS JOIN LATERAL (
    SELECT next_attempt_at FROM deliveries
    WHERE destination_id = r.destination_id AND state IN (0, 2) AND next_attempt_at > r.after
    ORDER BY next_attempt_at LIMIT 1
) next";

/// What one caller asks for.
pub(crate) struct Claiming {
    pub(crate) requests: Vec<ClaimRequest>,
    pub(crate) now: Timestamp,
}

/// A request of the group: where its answer belongs.
struct Asked<'r> {
    operation: usize,
    index: usize,
    request: &'r ClaimRequest,
    now: Timestamp,
}

#[async_trait]
impl Operation for Claiming {
    type Answer = Vec<Claims>;

    fn rows(&self) -> usize {
        self.requests.iter().map(|request| request.limit as usize).sum()
    }

    async fn run(group: &[&Self], connection: &mut PgConnection, _: &Shared) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let mut answers: Vec<Vec<Claims>> =
            group.iter().map(|claiming| vec![Claims::default(); claiming.requests.len()]).collect();
        let waves = waves(group);
        match &waves[..] {
            [] => {}
            [wave] => claim(wave, connection, &mut answers).await?,
            waves => {
                let mut transaction = connection.begin().await?;
                for wave in waves {
                    claim(wave, &mut transaction, &mut answers).await?;
                }
                transaction.commit().await?;
            }
        }
        Ok(answers)
    }
}

/// The requests of all operations, in waves that name a destination once: two requests in one statement would find the same
/// rows, since a transaction's own locks do not keep it out. Nearly always one wave.
fn waves<'r>(group: &[&'r Claiming]) -> Vec<Vec<Asked<'r>>> {
    let mut waves: Vec<Vec<Asked<'r>>> = Vec::new();
    let mut times_named: HashMap<DestinationId, usize> = HashMap::new();
    for (operation, claiming) in group.iter().enumerate() {
        for (index, request) in claiming.requests.iter().enumerate() {
            let wave = times_named.entry(request.destination_id).or_default();
            if waves.len() == *wave {
                waves.push(Vec::new());
            }
            waves[*wave].push(Asked { operation, index, request, now: claiming.now });
            *wave += 1;
        }
    }
    waves
}

/// A claim of nothing asks when the first of all is due.
fn after(asked: &Asked<'_>) -> i64 {
    if asked.request.limit == 0 { i64::MIN } else { asked.now.as_nanos() }
}

async fn claim(
    asked: &[Asked<'_>],
    connection: &mut PgConnection,
    answers: &mut [Vec<Claims>],
) -> Result<(), sqlx::Error> {
    let rows = sqlx::query(CLAIM)
        .bind(column(asked, |one| uuid(one.request.destination_id.as_bytes())))
        .bind(column(asked, |one| i64::from(one.request.limit)))
        .bind(column(asked, |one| one.now.as_nanos()))
        .bind(column(asked, after))
        .bind(column(asked, |one| one.request.expires_at.as_nanos()))
        .fetch_all(connection)
        .await?;
    let mut taken = Vec::with_capacity(rows.len());
    for row in &rows {
        let at = usize::try_from(int(row, 0)? - 1).map_err(|_| corrupt("a claim"))?;
        let one = asked.get(at).ok_or_else(|| corrupt("a claim"))?;
        if rows::is_null(row, 2)? {
            answers[one.operation][one.index].next_due = optional_time(row, 1)?;
        } else {
            taken.push((at, time(row, 1)?, claimed(row, one.request)?));
        }
    }
    taken.sort_unstable_by_key(|(at, due, claimed)| (*at, *due, claimed.claim.delivery_id));
    for (at, _, claimed) in taken {
        let one = &asked[at];
        answers[one.operation][one.index].deliveries.push(claimed);
    }
    for one in asked.iter().filter(|one| one.request.limit > 0) {
        let answer = &mut answers[one.operation][one.index];
        if answer.deliveries.len() == one.request.limit as usize {
            answer.next_due = None;
        }
    }
    Ok(())
}

fn claimed(row: &PgRow, request: &ClaimRequest) -> Result<ClaimedDelivery, sqlx::Error> {
    let destination_id = request.destination_id;
    Ok(ClaimedDelivery {
        claim: Claim { delivery_id: delivery_id(row, 2)?, destination_id, epoch: int(row, 4)? },
        event_id: event_id(row, 3)?,
        event_created_at: time(row, 6)?,
        attempts: small(row, 5)?,
        body: ClaimedBody::Inline(rows::body(row, 7)?),
        expires_at: request.expires_at,
        destination: None,
    })
}
