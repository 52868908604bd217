//! Claims: the deliveries of many destinations in one statement, with their bodies and what is due next.
//!
//! Bodies come from memory where this process stored the events, and the others are read by one more statement; a process that has
//! none in memory reads them in the same.

use std::collections::{BTreeSet, HashMap, HashSet};

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, postgres::PgRow, types::Uuid};
use tokio::time::Instant;
use weir_core::{
    DestinationId, EventId, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
    order::BEHIND,
};
use weir_store::{ClaimRequest, Claims, Line};

use crate::{
    Shared,
    ingest::column,
    lane,
    lines::advance,
    reached::{BEGINNING, Queue},
    rows::{self, corrupt, delivery_id, event_id, int, optional_text, optional_time, replay_id, small, time, uuid},
    writer::{Operation, Turn},
};

/// The claim, with what it answers of each claimed delivery and where that comes from.
///
/// One look per destination: its oldest due deliveries from where the last claim ended (`reached.rs`), found by its part of the
/// due index and bounded by LIMIT, so a long backlog costs no more than a short one and no destination stands in the way of
/// another. Materialized, or the planner could run the look again for each row that it updates, and claim more than the limit.
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
/// What is due next comes with it, for each request: the first after `after`, which is the present, since everything due by
/// then is claimed by this statement or by another. Should that other fail, the sweep finds what it left.
macro_rules! claim {
    ($due:literal, $next:literal, $body:literal, $claimed:literal) => {
        concat!(
            "
WITH request AS MATERIALIZED (
    SELECT r.* FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) WITH ORDINALITY
        AS r (destination_id, most, start, now, after, expires_at, request)
    JOIN destinations t ON t.id = r.destination_id AND NOT t.paused AND t.deleted_at IS NULL
), due AS MATERIALIZED (
    SELECT r.request, r.now, r.expires_at, d.id, d.place
    FROM request r CROSS JOIN LATERAL (
        SELECT id, ctid AS place FROM deliveries
        WHERE destination_id = r.destination_id AND state IN (0, 2) AND ",
            $due,
            "
        ORDER BY next_attempt_at, id LIMIT r.most
    ) d
), claimed AS (
    UPDATE deliveries d
    SET state = CASE WHEN d.expires_at <= due.now THEN 8 ELSE 1 END, claim_epoch = claim_epoch + 1,
        claim_expires_at = CASE WHEN d.expires_at <= due.now THEN NULL ELSE due.expires_at END, updated_at = due.now
    FROM due WHERE d.ctid = due.place AND d.id = due.id AND d.state + 0 IN (0, 2)
    RETURNING due.request, d.id, d.event_id, CASE WHEN d.state = 1 THEN d.claim_epoch END AS epoch, d.attempts,
        coalesce(d.deliver_at, d.created_at) AS created_at, d.next_attempt_at, d.attempts_before, d.replay_id,
        CASE WHEN d.state = 8 THEN d.ordering_key END AS left_line
)
SELECT c.request, c.next_attempt_at, c.id, c.event_id, c.epoch, c.attempts, c.created_at, ",
            $body,
            ", c.attempts_before, c.replay_id, c.left_line
FROM ",
            $claimed,
            "
UNION ALL
SELECT r.request, next.next_attempt_at, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM request r CROSS JOIN LATERAL (
    SELECT next_attempt_at FROM deliveries
    WHERE destination_id = r.destination_id AND state IN (0, 2) AND ",
            $next,
            "
    ORDER BY next_attempt_at LIMIT 1
) next"
        )
    };
}

/// Of what is live: it ends where the lane begins.
macro_rules! claim_live {
    ($body:literal, $claimed:literal) => {
        claim!(
            "next_attempt_at >= r.start AND next_attempt_at <= r.now",
            "next_attempt_at > r.after AND next_attempt_at < 4611686018427387904",
            $body,
            $claimed
        )
    };
}

/// Of the lane, whose due times are stored 2^62 nanoseconds later than they are.
macro_rules! claim_lane {
    ($body:literal, $claimed:literal) => {
        claim!(
            "next_attempt_at >= 4611686018427387904 AND next_attempt_at >= r.start \
                AND next_attempt_at <= r.now + 4611686018427387904",
            "next_attempt_at >= 4611686018427387904 AND next_attempt_at > r.after + 4611686018427387904",
            $body,
            $claimed
        )
    };
}

/// With the bodies. An outer join with a condition would look up each event and then not use it.
pub(crate) const CLAIM_WITH_BODIES: &str =
    claim_live!("e.data_offset, e.body", "claimed c JOIN events e ON e.id = c.event_id");

pub(crate) const CLAIM: &str = claim_live!("NULL::integer, NULL::bytea", "claimed c");

pub(crate) const CLAIM_LANE_WITH_BODIES: &str =
    claim_lane!("e.data_offset, e.body", "claimed c JOIN events e ON e.id = c.event_id");

pub(crate) const CLAIM_LANE: &str = claim_lane!("NULL::integer, NULL::bytea", "claimed c");

pub(crate) const BODIES: &str =
    "SELECT e.id, e.data_offset, e.body FROM unnest($1::uuid[]) AS r (id) JOIN events e ON e.id = r.id";

/// What one caller asks for.
pub(crate) struct Claiming {
    pub(crate) requests: Vec<ClaimRequest>,
    pub(crate) now: Timestamp,
    /// Of the lane of replays, and not of what is live.
    pub(crate) in_lane: bool,
}

/// A request of the group: where its answer belongs.
struct Asked<'r> {
    operation: usize,
    index: usize,
    request: &'r ClaimRequest,
    /// What is left of the request's limit.
    limit: u32,
    /// The due time it looks from.
    start: i64,
    now: Timestamp,
    in_lane: bool,
}

impl Asked<'_> {
    fn queue(&self) -> Queue {
        (self.request.destination_id, self.in_lane)
    }
}

#[async_trait]
impl Operation for Claiming {
    type Answer = Vec<Claims>;

    fn rows(&self) -> usize {
        self.requests.iter().map(|request| request.limit as usize).sum()
    }

    async fn run(
        group: &[&Self],
        connection: &mut PgConnection,
        shared: &Shared,
        _: &mut Turn,
    ) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let mut answers: Vec<Vec<Claims>> =
            group.iter().map(|claiming| vec![Claims::default(); claiming.requests.len()]).collect();
        let waves = waves(group);
        let (mut taken, mut left) = (Vec::new(), BTreeSet::new());
        let remembered = !shared.bodies().is_empty();
        if waves.len() > 1 {
            let mut transaction = connection.begin().await?;
            for wave in waves {
                left.extend(claim_wave(wave, remembered, &mut transaction, shared, &mut taken, &mut answers).await?);
            }
            transaction.commit().await?;
        } else if let Some(wave) = waves.into_iter().next() {
            left.extend(claim_wave(wave, remembered, connection, shared, &mut taken, &mut answers).await?);
        }
        advance(&left, &[], connection).await;
        if remembered {
            find_bodies(&mut taken, connection, shared).await?;
        }
        hand_out(taken, &mut answers);
        Ok(answers)
    }
}

/// The requests of all operations, in waves that name a destination once: two requests in one statement would find the same
/// rows, since a transaction's own locks do not keep it out. Nearly always one wave. Every process claims in the order of
/// destinations, so that of two that claim the same none waits for the other in a circle. Claims of the lane have waves of their
/// own, after the others.
fn waves<'r>(group: &[&'r Claiming]) -> Vec<Vec<Asked<'r>>> {
    let mut waves = waves_of(group, false);
    waves.extend(waves_of(group, true));
    waves
}

fn waves_of<'r>(group: &[&'r Claiming], in_lane: bool) -> Vec<Vec<Asked<'r>>> {
    let mut waves: Vec<Vec<Asked<'r>>> = Vec::new();
    let mut times_named: HashMap<DestinationId, usize> = HashMap::new();
    for (operation, claiming) in group.iter().enumerate().filter(|(_, claiming)| claiming.in_lane == in_lane) {
        for (index, request) in claiming.requests.iter().enumerate() {
            let wave = times_named.entry(request.destination_id).or_default();
            if waves.len() == *wave {
                waves.push(Vec::new());
            }
            let (limit, now) = (request.limit, claiming.now);
            waves[*wave].push(Asked { operation, index, request, limit, start: BEGINNING, now, in_lane });
            *wave += 1;
        }
    }
    for wave in &mut waves {
        wave.sort_unstable_by_key(|asked| asked.request.destination_id);
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
    in_lane: bool,
    expires_at: Timestamp,
    body: Option<EventBody>,
}

/// Claims from where the last claims ended, and from the beginning for those that this leaves short. Answers the lines whose heads
/// have expired.
async fn claim_wave(
    mut asked: Vec<Asked<'_>>,
    remembered: bool,
    connection: &mut PgConnection,
    shared: &Shared,
    taken: &mut Vec<Taken>,
    answers: &mut [Vec<Claims>],
) -> Result<Vec<Line>, sqlx::Error> {
    let now = Instant::now();
    for one in &mut asked {
        one.start = shared.reached.start(one.queue(), now);
    }
    let mut left = Vec::new();
    while !asked.is_empty() {
        let counts = claim(&asked, remembered, &mut *connection, taken, &mut left, answers).await?;
        let mut short = Vec::new();
        for (one, count) in asked.into_iter().zip(counts).filter(|(one, _)| one.limit > 0) {
            if count.rows == one.limit {
                shared.reached.filled(one.queue(), one.start, count.last, now);
                continue;
            }
            shared.reached.forget(one.queue());
            if one.start != BEGINNING {
                short.push(Asked { limit: one.limit - count.rows, start: BEGINNING, ..one });
            }
        }
        asked = short;
    }
    Ok(left)
}

/// What a statement found for one request.
#[derive(Clone, Copy)]
struct Count {
    rows: u32,
    /// The latest due time of them, as stored.
    last: i64,
}

/// Answers what it found for each.
async fn claim(
    asked: &[Asked<'_>],
    remembered: bool,
    connection: &mut PgConnection,
    taken: &mut Vec<Taken>,
    left: &mut Vec<Line>,
    answers: &mut [Vec<Claims>],
) -> Result<Vec<Count>, sqlx::Error> {
    let in_lane = asked.first().is_some_and(|one| one.in_lane);
    let statement = match (in_lane, remembered) {
        (false, true) => CLAIM,
        (false, false) => CLAIM_WITH_BODIES,
        (true, true) => CLAIM_LANE,
        (true, false) => CLAIM_LANE_WITH_BODIES,
    };
    let rows = sqlx::query(statement)
        .bind(column(asked, |one| uuid(one.request.destination_id.as_bytes())))
        .bind(column(asked, |one| i64::from(one.limit)))
        .bind(column(asked, |one| one.start))
        .bind(column(asked, |one| one.now.as_nanos()))
        .bind(column(asked, after))
        .bind(column(asked, |one| one.request.expires_at.as_nanos()))
        .fetch_all(connection)
        .await?;
    let mut counts = vec![Count { rows: 0, last: BEGINNING }; asked.len()];
    let mut expired = vec![false; asked.len()];
    taken.reserve(rows.len());
    for row in &rows {
        let at = usize::try_from(int(row, 0)? - 1).map_err(|_| corrupt("a claim"))?;
        let one = asked.get(at).ok_or_else(|| corrupt("a claim"))?;
        if rows::is_null(row, 2)? {
            let due = optional_time(row, 1)?.filter(|due| *due < BEHIND);
            answers[one.operation][one.index].next_due = due.map(lane::due);
        } else {
            counts[at].rows += 1;
            counts[at].last = counts[at].last.max(int(row, 1)?);
            if rows::is_null(row, 4)? {
                expired[at] = true;
                let destination_id = one.request.destination_id;
                left.extend(optional_text(row, 11)?.map(|ordering_key| Line { destination_id, ordering_key }));
            } else {
                taken.push(read_taken(row, one)?);
            }
        }
    }
    for (one, _) in asked.iter().zip(&counts).filter(|(one, count)| one.limit > 0 && count.rows == one.limit) {
        answers[one.operation][one.index].next_due = None;
    }
    for (one, _) in asked.iter().zip(expired).filter(|(_, expired)| *expired) {
        answers[one.operation][one.index].next_due = Some(one.now);
    }
    Ok(counts)
}

fn read_taken(row: &PgRow, asked: &Asked<'_>) -> Result<Taken, sqlx::Error> {
    let &ClaimRequest { destination_id, expires_at, .. } = asked.request;
    Ok(Taken {
        operation: asked.operation,
        index: asked.index,
        due: time(row, 1)?,
        claim: Claim { delivery_id: delivery_id(row, 2)?, destination_id, epoch: int(row, 4)? },
        event_id: event_id(row, 3)?,
        event_created_at: if rows::is_null(row, 10)? { time(row, 6)? } else { replay_id(row, 10)?.made_at() },
        attempts: small(row, 5)?,
        attempts_before: if rows::is_null(row, 9)? { 0 } else { small(row, 9)? },
        in_lane: asked.in_lane,
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
            in_lane: one.in_lane,
            body: ClaimedBody::Inline(body),
            expires_at: one.expires_at,
            destination: None,
        });
    }
}
