//! The statements of claims: of whole destinations and of the flows of limit keys, each with bodies and without.

use weir_store::sql;

/// The claim statement. The parameters are the expression for the body of a claimed delivery, the FROM clause, more columns
/// of a request with their names, and two searches for a request `r`: for its oldest due deliveries, and for its next due
/// time.
///
/// - **Search.** One subquery per request reads the oldest due deliveries, live ones or those of replays, from its
///   section of the due index. LIMIT bounds it, so the cost does not depend on the length of the backlog, and no
///   destination delays another. The subquery is materialized: otherwise the planner could run it again for each
///   updated row, and claim more than the limit.
/// - **No row locks.** A lock would write each row once more. Two processes claim the same rows only if a lease ended
///   before its run did. Then the later claim waits, finds that the rows are no longer waiting, and returns fewer than
///   its limit. The publication of the other process is stale, so that process releases its claims, and the release
///   wakes the destination.
/// - **Update by ctid.** The found row is updated at its physical address, which saves a second lookup by id. If the
///   row has moved meanwhile, the conditions are checked at its new address, or the row is skipped (this depends on the
///   server version).
/// - **Expiry.** A delivery whose `expires_at` has passed counts towards the limit. The claim sets it to `expired` and
///   returns it without an epoch. A search for a replacement would cost more the more deliveries have expired.
/// - **Registration.** A process that is no longer registered (processes.rs) claims nothing: the statement returns one
///   row without a request.
/// - **Next due time.** For each request the statement returns the first due time after `after`, which is the current
///   time: everything due by then is claimed by this statement or by another. If the other statement fails, the sweep
///   finds its deliveries.
macro_rules! claim {
    ($body:literal, $claimed:literal, $columns:literal, $names:literal, $due:expr, $next:expr) => {
        concat!(
            "
WITH owner AS MATERIALIZED (
    -- Whether this process may claim.
    SELECT $7::integer IS NULL OR EXISTS (SELECT FROM processes WHERE id = $7) AS is_registered
), request AS MATERIALIZED (
    -- The requests of destinations that are neither paused nor deleted.
    SELECT r.* FROM owner CROSS JOIN unnest($1::uuid[], $2::boolean[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]",
            $columns,
            ") WITH ORDINALITY
        AS r (destination_id, is_replay, max_claims, now, after, expires_at",
            $names,
            ", request)
    JOIN destinations t ON t.id = r.destination_id AND NOT t.paused AND t.deleted_at IS NULL
    WHERE owner.is_registered
), due AS MATERIALIZED (
    -- The oldest due deliveries of each request, with the addresses of their rows.
    SELECT r.request, r.now, r.expires_at, d.id, d.address
    FROM request r CROSS JOIN LATERAL (",
            $due,
            "
    ) d
), claimed AS (
    -- Claim them, or let them expire. A row that another claim has taken meanwhile is left out.
    UPDATE deliveries d
    SET state = CASE WHEN d.expires_at <= due.now THEN {expired} ELSE {delivering} END, claim_epoch = claim_epoch + 1,
        claim_expires_at = CASE WHEN d.expires_at <= due.now THEN NULL ELSE due.expires_at END,
        claimed_by = CASE WHEN d.expires_at <= due.now THEN NULL ELSE $7 END, updated_at = due.now
    FROM due WHERE d.ctid = due.address AND d.id = due.id AND d.state + 0 IN ({waiting})
    RETURNING due.request, d.id, d.event_id, CASE WHEN d.state = {delivering} THEN d.claim_epoch END AS epoch, d.attempts,
        coalesce(d.deliver_at, d.created_at) AS created_at, d.next_attempt_at,
        coalesce(d.attempts_before, 0) AS attempts_before, d.replay_id,
        CASE WHEN d.state = {expired} THEN d.ordering_key END AS freed_key, d.cost
)
SELECT c.request, c.next_attempt_at, c.id, c.event_id, c.epoch, c.attempts, c.created_at, ",
            $body,
            ", c.attempts_before, c.replay_id, c.freed_key, c.cost
FROM ",
            $claimed,
            "
UNION ALL
-- The next due time of each request.
SELECT r.request, next.next_attempt_at, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM request r CROSS JOIN LATERAL (",
            $next,
            "
) next
UNION ALL
-- The sign that this process is not registered.
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM owner WHERE NOT is_registered"
        )
    };
}

/// The claim of all deliveries of destinations.
macro_rules! claim_of_destinations {
    ($body:literal, $claimed:literal) => {
        claim!(
            $body,
            $claimed,
            "",
            "",
            "
        SELECT id, ctid AS address FROM deliveries
        WHERE destination_id = r.destination_id AND state IN ({waiting}) AND is_replay = r.is_replay
            AND next_attempt_at <= r.now
        ORDER BY next_attempt_at, id LIMIT r.max_claims",
            "
    SELECT next_attempt_at FROM deliveries
    WHERE destination_id = r.destination_id AND state IN ({waiting}) AND is_replay = r.is_replay
        AND next_attempt_at > r.after
    ORDER BY next_attempt_at LIMIT 1"
        )
    };
}

/// The claim of single flows of destinations with limit keys: of one key, or, with NULL, of those without a key. One of the
/// two branches of a search runs: the other has no key to search for, or a condition that is false for the whole request.
macro_rules! claim_of_flows {
    ($body:literal, $claimed:literal) => {
        claim!(
            $body,
            $claimed,
            ", $8::uuid[]",
            ", flow_id",
            "
        (SELECT id, ctid AS address FROM deliveries
        WHERE flow_id = r.flow_id AND state IN ({waiting}) AND is_replay = r.is_replay AND next_attempt_at <= r.now
        ORDER BY next_attempt_at, id LIMIT r.max_claims)
        UNION ALL
        -- Without a key: those among the first ones of the destination.
        (SELECT id, address FROM (
            SELECT id, ctid AS address, flow_id FROM deliveries
            WHERE r.flow_id IS NULL AND destination_id = r.destination_id AND state IN ({waiting})
                AND is_replay = r.is_replay AND next_attempt_at <= r.now
            ORDER BY next_attempt_at, id LIMIT $9
        ) looked WHERE flow_id IS NULL LIMIT r.max_claims)",
            "
    (SELECT next_attempt_at FROM deliveries
    WHERE flow_id = r.flow_id AND state IN ({waiting}) AND is_replay = r.is_replay AND next_attempt_at > r.after
    ORDER BY next_attempt_at LIMIT 1)
    UNION ALL
    (SELECT next_attempt_at FROM (
        SELECT next_attempt_at, flow_id FROM deliveries
        WHERE r.flow_id IS NULL AND destination_id = r.destination_id AND state IN ({waiting})
            AND is_replay = r.is_replay AND next_attempt_at > r.after
        ORDER BY next_attempt_at, id LIMIT $9
    ) looked WHERE flow_id IS NULL LIMIT 1)"
        )
    };
}

/// The claim that also reads the bodies. [`CLAIM`] reads none. It is a separate statement, because an outer join with a
/// condition would look up each event and then discard it.
pub(crate) const CLAIM_WITH_BODIES: &str = sql!(claim_of_destinations!(
    "e.data_offset, e.body, e.traceparent, e.event_type, e.created_at",
    "claimed c JOIN events e ON e.id = c.event_id"
));

pub(crate) const CLAIM: &str =
    sql!(claim_of_destinations!("NULL::integer, NULL::bytea, NULL::bytea, NULL::text, NULL::bigint", "claimed c"));

pub(crate) const CLAIM_FLOWS_WITH_BODIES: &str = sql!(claim_of_flows!(
    "e.data_offset, e.body, e.traceparent, e.event_type, e.created_at",
    "claimed c JOIN events e ON e.id = c.event_id"
));

pub(crate) const CLAIM_FLOWS: &str =
    sql!(claim_of_flows!("NULL::integer, NULL::bytea, NULL::bytea, NULL::text, NULL::bigint", "claimed c"));

pub(crate) const BODIES: &str = "SELECT e.id, e.data_offset, e.body, e.traceparent, e.event_type, e.created_at
FROM unnest($1::uuid[]) AS r (id) JOIN events e ON e.id = r.id";
