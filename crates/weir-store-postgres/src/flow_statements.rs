//! The scheduler's statements over destinations, and over the flows of limit keys. Both are one text, with the column of the
//! flow.
//!
//! Any delivery of a flow names its destination. The newest is read, because entries of the oldest may be of deleted rows.
//! The outstanding claims of a flow are found among those of its destination, which are as few as sends in flight: a flow
//! needs no index of its claims.

use weir_store::{sql, state_names::Names};

/// `claims`: where the outstanding claims are read. `of_flows`: the filter that counts only those of the flows asked for.
const OF_DESTINATIONS: Names = &[
    ("flow", "destination_id"),
    ("with", ""),
    ("ids", "unnest($1::uuid[]) AS r (id)"),
    ("destination", "r.id"),
    ("destinations", "= ANY($1)"),
    ("claims", "deliveries WHERE destination_id = ANY($1) AND state = {delivering}"),
    ("of_flows", ""),
    ("is_claimed", "EXISTS (SELECT 1 FROM deliveries WHERE destination_id = r.id AND state = {delivering})"),
    ("destination_of_first", "first.id"),
    ("restored", RESTORED),
];

/// The claims are found by their own index: OFFSET 0 makes them a look-up for each destination, and materialized the planner
/// does not look for them among all deliveries of a flow. They are compared with the flows in FILTER, where the planner
/// hashes the flows; in WHERE it would join, and compare each with each.
const OF_FLOWS: Names = &[
    ("flow", "flow_id"),
    (
        "with",
        "
WITH flows AS MATERIALIZED (
    SELECT r.id, (SELECT destination_id FROM deliveries WHERE flow_id = r.id ORDER BY id DESC LIMIT 1) AS destination_id
    FROM unnest($1::uuid[]) AS r (id)
), claimed AS MATERIALIZED (
    SELECT d.* FROM (SELECT DISTINCT destination_id FROM flows) t CROSS JOIN LATERAL (
        SELECT flow_id, cost FROM deliveries
        WHERE destination_id = t.destination_id AND state = {delivering} AND flow_id IS NOT NULL OFFSET 0
    ) d
)",
    ),
    ("ids", "flows r"),
    ("destination", "r.destination_id"),
    ("destinations", "IN (SELECT destination_id FROM flows)"),
    ("claims", "claimed"),
    ("of_flows", " FILTER (WHERE flow_id IN (SELECT id FROM flows))"),
    ("is_claimed", "r.id IN (SELECT flow_id FROM claimed)"),
    (
        "destination_of_first",
        "(SELECT destination_id FROM deliveries WHERE flow_id = first.id ORDER BY id DESC LIMIT 1)",
    ),
    ("restored", RESTORED),
];

/// The restore mark, if it is later than the parameter and one of the destinations is older.
const RESTORED: &str = "(SELECT m.sends_until FROM restored m WHERE m.single AND m.sends_until > $3
    AND m.sends_until >= (SELECT min(t.created_at) FROM destinations t WHERE t.id {destinations}))";

/// A loose index scan over flows: its cost does not depend on the lengths of the backlogs. The due time of a flow is the
/// earlier one of its first live delivery and its first delivery of a replay. Deliveries behind the head of a message group
/// are never due. The destination is a scalar subquery, because with a join the planner could start with all destinations,
/// in another order.
const DUE: &str = "
WITH RECURSIVE waiting (id) AS (
    -- The first flow after the given one that has waiting deliveries, then the next ones.
    SELECT (SELECT {flow} FROM deliveries
        WHERE state IN ({waiting}) AND {flow} > $1 ORDER BY {flow} LIMIT 1)
    UNION ALL
    SELECT (SELECT {flow} FROM deliveries
        WHERE state IN ({waiting}) AND {flow} > waiting.id ORDER BY {flow} LIMIT 1)
    FROM waiting WHERE waiting.id IS NOT NULL
), first (id, due) AS MATERIALIZED (
    -- The earlier of two due times: of its live deliveries, and of its deliveries of replays.
    SELECT id, least(
        (SELECT next_attempt_at FROM deliveries
            WHERE {flow} = waiting.id AND state IN ({waiting}) AND NOT is_replay ORDER BY next_attempt_at LIMIT 1),
        (SELECT next_attempt_at FROM deliveries
            WHERE {flow} = waiting.id AND state IN ({waiting}) AND is_replay ORDER BY next_attempt_at LIMIT 1))
    FROM waiting WHERE id IS NOT NULL
)
-- A due time at the end of time: only deliveries behind heads remain.
SELECT first.id, first.due, (SELECT t.limit_group FROM destinations t WHERE t.id = {destination_of_first}) FROM first
WHERE first.due < $2 AND first.due < {end_of_time}
    AND (SELECT NOT t.paused AND t.deleted_at IS NULL FROM destinations t WHERE t.id = {destination_of_first})
LIMIT $3";

pub(crate) const DUE_DESTINATIONS: &str = sql!(DUE, OF_DESTINATIONS);
pub(crate) const DUE_FLOWS: &str = sql!(DUE, OF_FLOWS);

const LAST_SENDS: &str = "{with}
SELECT r.id,
    (SELECT sent_at FROM attempts WHERE {flow} = r.id AND sent_at IS NOT NULL ORDER BY sent_at DESC LIMIT 1),
    {is_claimed},
    (SELECT m.sends_until FROM restored m
        WHERE m.single AND m.sends_until >= (SELECT t.created_at FROM destinations t WHERE t.id = {destination}))
FROM {ids}";

pub(crate) const SEND_HISTORY: &str = sql!(LAST_SENDS, OF_DESTINATIONS);
pub(crate) const SEND_HISTORY_OF_FLOWS: &str = sql!(LAST_SENDS, OF_FLOWS);

/// One statement, so that a send is recorded or its claim is outstanding.
const COUNTS: &str = "{with}
SELECT sent_at / $2 + 1, count(*) FROM attempts
    WHERE {flow} = ANY($1) AND sent_at IS NOT NULL AND sent_at > $3 GROUP BY 1
UNION ALL SELECT -1, count(*){of_flows} FROM {claims}
UNION ALL SELECT -2, {restored}";

pub(crate) const SENT_COUNTS: &str = sql!(COUNTS, OF_DESTINATIONS);
pub(crate) const SENT_COUNTS_OF_FLOWS: &str = sql!(COUNTS, OF_FLOWS);

/// The places of some deliveries: the entries of both parts of the due index are numbered in the order of claims, up to a
/// bound, and those of the given ids are kept.
const PLACES_OF: &str = "
SELECT id, is_replay, ahead FROM (
    SELECT id, false AS is_replay, row_number() OVER (ORDER BY next_attempt_at, id) - 1 AS ahead FROM (
        SELECT id, next_attempt_at FROM deliveries
        WHERE {flow} = $1 AND NOT is_replay AND state IN ({waiting}) ORDER BY next_attempt_at, id LIMIT $2
    ) live
    UNION ALL
    SELECT id, true, row_number() OVER (ORDER BY next_attempt_at, id) - 1 FROM (
        SELECT id, next_attempt_at FROM deliveries
        WHERE {flow} = $1 AND is_replay AND state IN ({waiting}) ORDER BY next_attempt_at, id LIMIT $2
    ) replayed
) places WHERE id = ANY($3)";

pub(crate) const PLACES: &str = sql!(PLACES_OF, OF_DESTINATIONS);
pub(crate) const PLACES_OF_FLOW: &str = sql!(PLACES_OF, OF_FLOWS);

/// How many live deliveries are due, up to a bound.
const LIVE_DUE_OF: &str = "
SELECT count(*) FROM (
    SELECT FROM deliveries
    WHERE {flow} = $1 AND NOT is_replay AND state IN ({waiting}) AND next_attempt_at <= $2 LIMIT $3
) due";

pub(crate) const LIVE_DUE: &str = sql!(LIVE_DUE_OF, OF_DESTINATIONS);
pub(crate) const LIVE_DUE_OF_FLOW: &str = sql!(LIVE_DUE_OF, OF_FLOWS);

/// The same in costs. The last row is the usual cost: of so many deliveries, that a run publishes no more.
const COSTS: &str = "{with}
SELECT a.sent_at / $2 + 1, sum(coalesce(d.cost, 1))::bigint FROM attempts a JOIN deliveries d ON d.id = a.delivery_id
    WHERE a.{flow} = ANY($1) AND a.sent_at IS NOT NULL AND a.sent_at > $3 GROUP BY 1
UNION ALL SELECT -1, (sum(coalesce(cost, 1)){of_flows})::bigint FROM {claims}
UNION ALL SELECT -2, {restored}
UNION ALL SELECT -3, (avg(coalesce(due.cost, 1)) * 256)::bigint FROM unnest($1) one (id) CROSS JOIN LATERAL (
    SELECT cost FROM deliveries
    WHERE {flow} = one.id AND NOT is_replay AND state IN ({waiting})
    ORDER BY next_attempt_at LIMIT greatest(512 / cardinality($1), 1)
) due";

pub(crate) const SENT_COSTS: &str = sql!(COSTS, OF_DESTINATIONS);
pub(crate) const SENT_COSTS_OF_FLOWS: &str = sql!(COSTS, OF_FLOWS);
