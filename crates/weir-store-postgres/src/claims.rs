//! Claims: one statement claims deliveries of many destinations, and returns their bodies and the next due times.
//!
//! Bodies come from the body cache if this process stored the events. A second statement reads the others. A process
//! with an empty cache reads all bodies in the claim statement.

mod statements;

use std::collections::{BTreeSet, HashMap, HashSet};

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, postgres::PgRow, types::Uuid};
use weir_core::{
    DestinationId, EventId, ReplayId, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery, ProcessId},
    order::BEHIND,
};
use weir_sealing::Keyring;
use weir_store::{
    ClaimRequest, ClaimedFlow, Claims, KEYLESS_LOOKED_AT, MessageGroup,
    rows::{self, Row as _},
};

pub(crate) use self::statements::{BODIES, CLAIM, CLAIM_FLOWS, CLAIM_FLOWS_WITH_BODIES, CLAIM_WITH_BODIES};
use crate::{
    Shared,
    message_groups::advance,
    rows::{Read, column, named, uuid},
    writer::Operation,
};

/// The claim requests of one caller.
pub(crate) struct Claiming {
    pub(crate) requests: Vec<ClaimRequest>,
    pub(crate) now: Timestamp,
    /// Claims deliveries of replays instead of live deliveries.
    pub(crate) of_replays: bool,
}

/// One request of a batch. `operation` and `index` say which request of which operation it is, for the answer.
struct BatchRequest<'r> {
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
        batch: &[&Self],
        connection: &mut PgConnection,
        shared: &Shared,
    ) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let mut answers: Vec<Vec<Claims>> =
            batch.iter().map(|claiming| vec![Claims::default(); claiming.requests.len()]).collect();
        let waves = waves(batch);
        let (mut claimed, mut freed) = (Vec::new(), BTreeSet::new());
        let has_cached_bodies = !shared.bodies.lock().is_empty();
        let owner = shared.process.id();
        // Several waves commit together, so that a failure leaves no claim. One wave is one statement and commits by
        // itself.
        if waves.len() > 1 {
            let mut transaction = connection.begin().await?;
            for wave in waves {
                let expired = claim(
                    &wave,
                    owner,
                    has_cached_bodies,
                    &shared.keyring,
                    &mut transaction,
                    &mut claimed,
                    &mut answers,
                )
                .await?;
                freed.extend(expired);
            }
            transaction.commit().await?;
        } else if let Some(wave) = waves.first() {
            freed.extend(
                claim(wave, owner, has_cached_bodies, &shared.keyring, connection, &mut claimed, &mut answers).await?,
            );
        }
        // After the commit: the message groups of expired heads need new heads.
        advance(&freed, &[], connection).await;
        // With cached bodies the claim statement has read none.
        if has_cached_bodies {
            find_bodies(&mut claimed, connection, shared).await?;
        }
        add_to_answers(claimed, &mut answers);
        Ok(answers)
    }
}

/// The requests of all operations, in waves: first those of destinations without limit keys, then those of flows. A wave
/// names each section of a due index once: two requests for one section in one statement would find the same rows. There is
/// nearly always one wave. Every process claims in the order of the index, so that two processes with the same sections
/// cannot deadlock.
fn waves<'r>(batch: &[&'r Claiming]) -> Vec<Vec<BatchRequest<'r>>> {
    let (mut of_destinations, mut of_flows) = (Vec::new(), Vec::new());
    let mut times_named: HashMap<(bool, DestinationId, bool), usize> = HashMap::new();
    for (operation, claiming) in batch.iter().enumerate() {
        let (now, of_replays) = (claiming.now, claiming.of_replays);
        for (index, request) in claiming.requests.iter().enumerate() {
            // The first request for a section goes to the first wave, the second one to the second wave.
            let is_of_flow = request.flow != ClaimedFlow::All;
            let wave = times_named.entry((is_of_flow, request.flow_id(), of_replays)).or_default();
            let waves: &mut Vec<Vec<BatchRequest<'r>>> = if is_of_flow { &mut of_flows } else { &mut of_destinations };
            if waves.len() == *wave {
                waves.push(Vec::new());
            }
            waves[*wave].push(BatchRequest { operation, index, request, now, of_replays });
            *wave += 1;
        }
    }
    of_destinations.append(&mut of_flows);
    for wave in &mut of_destinations {
        wave.sort_unstable_by_key(|one| (one.request.flow_id(), one.of_replays));
    }
    of_destinations
}

/// A request with a limit of 0 asks for the first due time of all waiting deliveries.
fn after(one: &BatchRequest<'_>) -> i64 {
    if one.request.limit == 0 { i64::MIN } else { one.now.as_nanos() }
}

/// A claimed delivery. `operation` and `index` say to which request it belongs.
struct ClaimedRow {
    operation: usize,
    index: usize,
    due: Timestamp,
    flow_id: DestinationId,
    claim: Claim,
    event_id: EventId,
    event_created_at: Timestamp,
    attempts: u32,
    attempts_before: u32,
    is_replay: bool,
    cost: u32,
    expires_at: Timestamp,
    body: Option<ClaimedBody>,
}

/// Returns the message groups whose heads have expired.
async fn claim(
    requests: &[BatchRequest<'_>],
    owner: Option<ProcessId>,
    has_cached_bodies: bool,
    keyring: &Keyring,
    connection: &mut PgConnection,
    claimed: &mut Vec<ClaimedRow>,
    answers: &mut [Vec<Claims>],
) -> Result<Vec<MessageGroup>, sqlx::Error> {
    // One row of parameters for each request. One statement claims for all of them.
    let of_flows = requests.iter().any(|one| one.request.flow != ClaimedFlow::All);
    let mut query = sqlx::query(match (of_flows, has_cached_bodies) {
        (false, true) => CLAIM,
        (false, false) => CLAIM_WITH_BODIES,
        (true, true) => CLAIM_FLOWS,
        (true, false) => CLAIM_FLOWS_WITH_BODIES,
    });
    query = query
        .bind(column(requests, |one| uuid(one.request.destination_id.as_bytes())))
        .bind(column(requests, |one| one.of_replays))
        .bind(column(requests, |one| i64::from(one.request.limit)))
        .bind(column(requests, |one| one.now.as_nanos()))
        .bind(column(requests, after))
        .bind(column(requests, |one| one.request.expires_at.as_nanos()))
        .bind(owner.map(|owner| owner.0));
    if of_flows {
        query = query
            .bind(column(requests, |one| match one.request.flow {
                ClaimedFlow::Key(flow) => Some(uuid(flow.as_bytes())),
                ClaimedFlow::All | ClaimedFlow::Keyless => None,
            }))
            .bind(i64::from(KEYLESS_LOOKED_AT));
    }
    let rows = query.fetch_all(connection).await?;
    // Split the rows into next due times, expired deliveries and claims.
    let mut counts = vec![RequestCount::default(); requests.len()];
    let mut freed = Vec::new();
    claimed.reserve(rows.len());
    for row in &rows {
        // The only row without a request: this process is not registered, and nothing was claimed.
        if row.optional_int(0)?.is_none() {
            return Err(sqlx::Error::Protocol("this process was declared dead".to_owned()));
        }
        let (at, one) = named(row, 0, requests)?;
        // A row without a delivery holds the next due time.
        if row.optional_id(2)?.is_none() {
            answers[one.operation][one.index].next_due = row.optional_time(1)?.filter(|due| *due < BEHIND);
            continue;
        }
        counts[at].rows += 1;
        // A delivery without an epoch has expired.
        if row.optional_int(4)?.is_none() {
            counts[at].expired = true;
            let destination_id = one.request.destination_id;
            freed.extend(row.optional_text(14)?.map(|ordering_key| MessageGroup { destination_id, ordering_key }));
        } else {
            claimed.push(read_claimed(row, one, keyring)?);
        }
    }
    // An expired delivery counted towards the limit, so more deliveries may be due now. After a full claim the answer
    // names no next due time.
    for (one, count) in requests.iter().zip(counts) {
        let answer = &mut answers[one.operation][one.index];
        if count.expired {
            answer.next_due = Some(one.now);
        } else if one.request.limit > 0 && count.rows == one.request.limit {
            answer.next_due = None;
        }
    }
    Ok(freed)
}

/// How many rows a statement found for one request.
#[derive(Clone, Copy, Default)]
struct RequestCount {
    rows: u32,
    /// Whether one of the deliveries had expired.
    expired: bool,
}

fn read_claimed(row: &PgRow, one: &BatchRequest<'_>, keyring: &Keyring) -> Read<ClaimedRow> {
    let event_id = row.event_id(3)?;
    let replayed_at = row.optional_id(13)?.map(|id| ReplayId::from_bytes(id).made_at());
    let &ClaimRequest { destination_id, expires_at, .. } = one.request;
    Ok(ClaimedRow {
        operation: one.operation,
        index: one.index,
        due: row.time(1)?,
        flow_id: one.request.flow_id(),
        claim: Claim { delivery_id: row.delivery_id(2)?, destination_id, epoch: row.int(4)? },
        event_id,
        event_created_at: replayed_at.map_or_else(|| row.time(6), Ok)?,
        attempts: row.small(5)?,
        attempts_before: row.small(12)?,
        is_replay: one.of_replays,
        cost: rows::cost(row, 15)?,
        expires_at,
        body: row.optional_bytes(8)?.map(|_| rows::claimed_body(row, 7, event_id, keyring)).transpose()?,
    })
}

/// Adds the bodies of claimed deliveries: from the cache, and the others with one statement. If the statement fails,
/// the claims stay until they expire, like every claim whose answer is lost.
async fn find_bodies(
    claimed: &mut [ClaimedRow],
    connection: &mut PgConnection,
    shared: &Shared,
) -> Result<(), sqlx::Error> {
    // Take the cached bodies. The block releases the lock of the cache before the statement.
    let missing: HashSet<Uuid> = {
        let mut cache = shared.bodies.lock();
        for one in &mut *claimed {
            one.body = cache.take(one.event_id).map(ClaimedBody::Inline);
        }
        claimed.iter().filter(|one| one.body.is_none()).map(|one| uuid(one.event_id.as_bytes())).collect()
    };
    if missing.is_empty() {
        return Ok(());
    }
    // Read the others, each event once.
    let missing: Vec<Uuid> = missing.into_iter().collect();
    let rows = sqlx::query(BODIES).bind(missing).fetch_all(connection).await?;
    let read = |row: &PgRow| {
        let id = row.event_id(0)?;
        Ok((id, rows::claimed_body(row, 1, id, &shared.keyring)?))
    };
    let found: HashMap<EventId, ClaimedBody> = rows.iter().map(read).collect::<Read<_>>()?;
    // A delivery whose event does not exist keeps no body, and the answer leaves it out.
    for one in claimed.iter_mut().filter(|one| one.body.is_none()) {
        one.body = found.get(&one.event_id).cloned();
    }
    Ok(())
}

/// Adds each claimed delivery to the answer of its request, the oldest due first. A delivery without an event is left
/// out.
fn add_to_answers(mut claimed: Vec<ClaimedRow>, answers: &mut [Vec<Claims>]) {
    claimed.sort_unstable_by_key(|one| (one.due, one.claim.delivery_id));
    for one in claimed {
        let Some(body) = one.body else { continue };
        answers[one.operation][one.index].deliveries.push(ClaimedDelivery {
            flow_id: one.flow_id,
            claim: one.claim,
            event_id: one.event_id,
            event_created_at: one.event_created_at,
            attempts: one.attempts,
            attempts_before: one.attempts_before,
            is_replay: one.is_replay,
            cost: one.cost,
            body,
            expires_at: one.expires_at,
            destination: None,
        });
    }
}
