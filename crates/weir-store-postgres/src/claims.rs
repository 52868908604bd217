//! Claims: the deliveries of many destinations in one statement, with their bodies and what is due next.
//!
//! Bodies come from memory where this process stored the events, and the others are read by one more statement; a process that has
//! none in memory reads them in the same.

use std::collections::{BTreeSet, HashMap, HashSet};

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, postgres::PgRow, types::Uuid};
use weir_core::{
    DestinationId, EventId, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery, ProcessId},
    event::EventBody,
    order::BEHIND,
};
use weir_store::{ClaimRequest, Claims, MessageGroup};

use crate::{
    Shared,
    ingest::column,
    message_groups::advance,
    rows::{self, corrupt, delivery_id, event_id, int, optional_text, optional_time, replay_id, small, time, uuid},
    writer::Operation,
};

/// The claim, with what it answers of each claimed delivery and where that comes from.
///
/// One look per destination, at live deliveries or at those of replays: its oldest due, found by its part of the due index and
/// bounded by LIMIT, so a long backlog costs no more than a short one and no destination stands in the way of another.
/// Materialized, or the planner could run the look again for each row that it updates, and claim more than the limit.
///
/// The look locks nothing, since a lock would write each row once more. Two processes claim the same rows only when a lease
/// has ended before its run; then the later one waits, finds them gone, and comes back short. The other's publication is stale, so
/// it gives back what it took, and wakes.
///
/// The row found is updated at its place, which spares a second look by its id. Had it moved meanwhile, the conditions are
/// seen to at its new place, or it is passed over (which of them depends on the server's version).
///
/// One whose time is over takes its place in the claim and is `expired` by it; it comes back without an epoch. To look for
/// another in its stead would cost the more, the more have expired.
///
/// Nothing is claimed for a process that is not registered any more (processes.rs); that is one row, of no request.
///
/// What is due next comes with it, for each request: the first after `after`, which is the present, since everything due by
/// then is claimed by this statement or by another. Should that other fail, the sweep finds what it left.
macro_rules! claim {
    ($body:literal, $claimed:literal) => {
        concat!(
            "
WITH owner AS MATERIALIZED (
    SELECT $7::integer IS NULL OR EXISTS (SELECT FROM processes WHERE id = $7) AS is_registered
), request AS MATERIALIZED (
    SELECT r.* FROM owner CROSS JOIN unnest($1::uuid[], $2::boolean[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) WITH ORDINALITY
        AS r (destination_id, is_replay, most, now, after, expires_at, request)
    JOIN destinations t ON t.id = r.destination_id AND NOT t.paused AND t.deleted_at IS NULL
    WHERE owner.is_registered
), due AS MATERIALIZED (
    SELECT r.request, r.now, r.expires_at, d.id, d.place
    FROM request r CROSS JOIN LATERAL (
        SELECT id, ctid AS place FROM deliveries
        WHERE destination_id = r.destination_id AND state IN (0, 2) AND is_replay = r.is_replay
            AND next_attempt_at <= r.now
        ORDER BY next_attempt_at, id LIMIT r.most
    ) d
), claimed AS (
    UPDATE deliveries d
    SET state = CASE WHEN d.expires_at <= due.now THEN 8 ELSE 1 END, claim_epoch = claim_epoch + 1,
        claim_expires_at = CASE WHEN d.expires_at <= due.now THEN NULL ELSE due.expires_at END,
        claimed_by = CASE WHEN d.expires_at <= due.now THEN NULL ELSE $7 END, updated_at = due.now
    FROM due WHERE d.ctid = due.place AND d.id = due.id AND d.state + 0 IN (0, 2)
    RETURNING due.request, d.id, d.event_id, CASE WHEN d.state = 1 THEN d.claim_epoch END AS epoch, d.attempts,
        coalesce(d.deliver_at, d.created_at) AS created_at, d.next_attempt_at, d.attempts_before, d.replay_id,
        CASE WHEN d.state = 8 THEN d.ordering_key END AS left_group
)
SELECT c.request, c.next_attempt_at, c.id, c.event_id, c.epoch, c.attempts, c.created_at, ",
            $body,
            ", c.attempts_before, c.replay_id, c.left_group
FROM ",
            $claimed,
            "
UNION ALL
SELECT r.request, next.next_attempt_at, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM request r CROSS JOIN LATERAL (
    SELECT next_attempt_at FROM deliveries
    WHERE destination_id = r.destination_id AND state IN (0, 2) AND is_replay = r.is_replay
        AND next_attempt_at > r.after
    ORDER BY next_attempt_at LIMIT 1
) next
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM owner WHERE NOT is_registered"
        )
    };
}

/// With the bodies. An outer join with a condition would look up each event and then not use it.
pub(crate) const CLAIM_WITH_BODIES: &str =
    claim!("e.data_offset, e.body, e.traceparent", "claimed c JOIN events e ON e.id = c.event_id");

pub(crate) const CLAIM: &str = claim!("NULL::integer, NULL::bytea, NULL::bytea", "claimed c");

pub(crate) const BODIES: &str =
    "SELECT e.id, e.data_offset, e.body, e.traceparent FROM unnest($1::uuid[]) AS r (id) JOIN events e ON e.id = r.id";

/// What one caller asks for.
pub(crate) struct Claiming {
    pub(crate) requests: Vec<ClaimRequest>,
    pub(crate) now: Timestamp,
    /// Of the deliveries of replays, and not of what is live.
    pub(crate) of_replays: bool,
}

/// A request of the group: where its answer belongs.
struct Asked<'r> {
    operation: usize,
    index: usize,
    request: &'r ClaimRequest,
    now: Timestamp,
    of_replays: bool,
}

#[async_trait]
impl Operation for Claiming {
    type Answer = Vec<Claims>;

    const NAME: &'static str = "claim";

    fn rows(&self) -> usize {
        self.requests.iter().map(|request| request.limit as usize).sum()
    }

    async fn run(
        group: &[&Self],
        connection: &mut PgConnection,
        shared: &Shared,
    ) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let mut answers: Vec<Vec<Claims>> =
            group.iter().map(|claiming| vec![Claims::default(); claiming.requests.len()]).collect();
        let waves = waves(group);
        let (mut taken, mut left) = (Vec::new(), BTreeSet::new());
        let remembered = !shared.bodies().is_empty();
        let owner = shared.process.id();
        if waves.len() > 1 {
            let mut transaction = connection.begin().await?;
            for wave in waves {
                left.extend(claim(&wave, owner, remembered, &mut transaction, &mut taken, &mut answers).await?);
            }
            transaction.commit().await?;
        } else if let Some(wave) = waves.first() {
            left.extend(claim(wave, owner, remembered, connection, &mut taken, &mut answers).await?);
        }
        advance(&left, &[], connection).await;
        if remembered {
            find_bodies(&mut taken, connection, shared).await?;
        }
        hand_out(taken, &mut answers);
        Ok(answers)
    }
}

/// The requests of all operations, in waves that name each part of the due index once: two requests for one part in one statement
/// would find the same rows, since a transaction's own locks do not keep it out. Nearly always one wave. Every process claims in
/// the order of the index, so that of two that claim the same none waits for the other in a circle.
fn waves<'r>(group: &[&'r Claiming]) -> Vec<Vec<Asked<'r>>> {
    let mut waves: Vec<Vec<Asked<'r>>> = Vec::new();
    let mut times_named: HashMap<(DestinationId, bool), usize> = HashMap::new();
    for (operation, claiming) in group.iter().enumerate() {
        let (now, of_replays) = (claiming.now, claiming.of_replays);
        for (index, request) in claiming.requests.iter().enumerate() {
            let wave = times_named.entry((request.destination_id, of_replays)).or_default();
            if waves.len() == *wave {
                waves.push(Vec::new());
            }
            waves[*wave].push(Asked { operation, index, request, now, of_replays });
            *wave += 1;
        }
    }
    for wave in &mut waves {
        wave.sort_unstable_by_key(|asked| (asked.request.destination_id, asked.of_replays));
    }
    waves
}

/// A claim of nothing asks when the first of all is due.
fn after(asked: &Asked<'_>) -> i64 {
    if asked.request.limit == 0 { i64::MIN } else { asked.now.as_nanos() }
}

/// A claimed delivery, to whom it goes, and what it is claimed in the order of.
struct Taken {
    operation: usize,
    index: usize,
    due: Timestamp,
    claim: Claim,
    event_id: EventId,
    event_created_at: Timestamp,
    attempts: u32,
    attempts_before: u32,
    is_replay: bool,
    expires_at: Timestamp,
    body: Option<EventBody>,
}

/// Answers the lines whose heads have expired.
async fn claim(
    asked: &[Asked<'_>],
    owner: Option<ProcessId>,
    remembered: bool,
    connection: &mut PgConnection,
    taken: &mut Vec<Taken>,
    answers: &mut [Vec<Claims>],
) -> Result<Vec<MessageGroup>, sqlx::Error> {
    let rows = sqlx::query(if remembered { CLAIM } else { CLAIM_WITH_BODIES })
        .bind(column(asked, |one| uuid(one.request.destination_id.as_bytes())))
        .bind(column(asked, |one| one.of_replays))
        .bind(column(asked, |one| i64::from(one.request.limit)))
        .bind(column(asked, |one| one.now.as_nanos()))
        .bind(column(asked, after))
        .bind(column(asked, |one| one.request.expires_at.as_nanos()))
        .bind(owner.map(|owner| owner.0))
        .fetch_all(connection)
        .await?;
    let mut counts = vec![Count::default(); asked.len()];
    let mut left = Vec::new();
    taken.reserve(rows.len());
    for row in &rows {
        if rows::is_null(row, 0)? {
            return Err(sqlx::Error::Protocol("this process was declared dead".to_owned()));
        }
        let at = usize::try_from(int(row, 0)? - 1).map_err(|_| corrupt("a claim"))?;
        let one = asked.get(at).ok_or_else(|| corrupt("a claim"))?;
        if rows::is_null(row, 2)? {
            answers[one.operation][one.index].next_due = optional_time(row, 1)?.filter(|due| *due < BEHIND);
            continue;
        }
        counts[at].rows += 1;
        if rows::is_null(row, 4)? {
            counts[at].expired = true;
            let destination_id = one.request.destination_id;
            left.extend(optional_text(row, 12)?.map(|ordering_key| MessageGroup { destination_id, ordering_key }));
        } else {
            taken.push(read_taken(row, one)?);
        }
    }
    for (one, count) in asked.iter().zip(counts) {
        let answer = &mut answers[one.operation][one.index];
        if count.expired {
            answer.next_due = Some(one.now);
        } else if one.request.limit > 0 && count.rows == one.request.limit {
            answer.next_due = None;
        }
    }
    Ok(left)
}

/// What a statement found for one request.
#[derive(Clone, Copy, Default)]
struct Count {
    rows: u32,
    /// Whether the time of one of them was over.
    expired: bool,
}

fn read_taken(row: &PgRow, asked: &Asked<'_>) -> Result<Taken, sqlx::Error> {
    let &ClaimRequest { destination_id, expires_at, .. } = asked.request;
    Ok(Taken {
        operation: asked.operation,
        index: asked.index,
        due: time(row, 1)?,
        claim: Claim { delivery_id: delivery_id(row, 2)?, destination_id, epoch: int(row, 4)? },
        event_id: event_id(row, 3)?,
        event_created_at: if rows::is_null(row, 11)? { time(row, 6)? } else { replay_id(row, 11)?.made_at() },
        attempts: small(row, 5)?,
        attempts_before: if rows::is_null(row, 10)? { 0 } else { small(row, 10)? },
        is_replay: asked.of_replays,
        expires_at,
        body: (!rows::is_null(row, 8)?).then(|| rows::body(row, 7)).transpose()?,
    })
}

/// The bodies of what was claimed: those in memory, and the others in one statement. What is claimed stays so should that
/// fail, and expires, as any claim does whose answer is lost.
async fn find_bodies(taken: &mut [Taken], connection: &mut PgConnection, shared: &Shared) -> Result<(), sqlx::Error> {
    let missing: HashSet<Uuid> = {
        let mut waiting = shared.bodies();
        for one in &mut *taken {
            one.body = waiting.take(one.event_id);
        }
        taken.iter().filter(|one| one.body.is_none()).map(|one| uuid(one.event_id.as_bytes())).collect()
    };
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<Uuid> = missing.into_iter().collect();
    let rows = sqlx::query(BODIES).bind(missing).fetch_all(connection).await?;
    let read = |row: &PgRow| Ok((event_id(row, 0)?, rows::body(row, 1)?));
    let found: HashMap<EventId, EventBody> = rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?;
    for one in taken.iter_mut().filter(|one| one.body.is_none()) {
        one.body = found.get(&one.event_id).cloned();
    }
    Ok(())
}

/// Each to who asked for it, the oldest due first. One whose event is gone has nothing to be sent.
fn hand_out(mut taken: Vec<Taken>, answers: &mut [Vec<Claims>]) {
    taken.sort_unstable_by_key(|one| (one.due, one.claim.delivery_id));
    for one in taken {
        let Some(body) = one.body else { continue };
        answers[one.operation][one.index].deliveries.push(ClaimedDelivery {
            claim: one.claim,
            event_id: one.event_id,
            event_created_at: one.event_created_at,
            attempts: one.attempts,
            attempts_before: one.attempts_before,
            is_replay: one.is_replay,
            body: ClaimedBody::Inline(body),
            expires_at: one.expires_at,
            destination: None,
        });
    }
}
