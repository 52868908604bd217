//! The scheduler's statements over destinations, and over the flows of limit keys. Both are one text, with the column and
//! the indexes of the flow.
//!
//! Any delivery of a flow names its destination. The outstanding claims of a flow are found among those of its destination,
//! which are as few as sends in flight: a flow needs no index of its claims.

use weir_store::{sql, state_names::Names};

use crate::sql::Batch;

/// `ids` are the flows of the statement with their `destination`, and `with` what is read for them first. `claims` are the
/// outstanding claims of all of them.
const OF_DESTINATIONS: Names = &[
    ("flow", "destination_id"),
    ("attempts", "attempts a INDEXED BY attempts_of_destination"),
    ("due", "deliveries INDEXED BY deliveries_due"),
    ("with", ""),
    ("ids", "r"),
    ("destination", "r.id"),
    ("claims", "r CROSS JOIN deliveries INDEXED BY deliveries_claimed WHERE {of_claim}"),
    ("is_claimed", "EXISTS (SELECT 1 FROM deliveries INDEXED BY deliveries_claimed WHERE {of_claim})"),
    ("of_claim", "destination_id = r.id AND state = {delivering}"),
    ("destination_of_first", "first.id"),
    ("restored", RESTORED),
];

const OF_FLOWS: Names = &[
    ("flow", "flow_id"),
    ("attempts", "attempts a INDEXED BY attempts_of_flow"),
    ("due", "deliveries INDEXED BY deliveries_due_of_flow"),
    (
        "with",
        ", flows (id, destination_id) AS MATERIALIZED (
    SELECT id, (SELECT destination_id FROM deliveries INDEXED BY deliveries_of_flow WHERE flow_id = r.id LIMIT 1)
    FROM r WHERE id IS NOT NULL
)",
    ),
    ("ids", "flows r"),
    ("destination", "r.destination_id"),
    (
        "claims",
        "deliveries INDEXED BY deliveries_claimed
    WHERE destination_id IN (SELECT destination_id FROM flows) AND state = {delivering}
        AND +flow_id IN (SELECT id FROM flows)",
    ),
    ("is_claimed", "r.id IN (SELECT flow_id FROM {claims})"),
    (
        "destination_of_first",
        "(SELECT destination_id FROM deliveries INDEXED BY deliveries_of_flow WHERE flow_id = first.id LIMIT 1)",
    ),
    ("restored", RESTORED),
];

/// The restore mark, if it is later than the parameter and one of the destinations is older.
const RESTORED: &str = "(SELECT m.sends_until FROM {ids} CROSS JOIN destinations t CROSS JOIN restored m
    WHERE t.id = {destination} AND m.single = 1 AND t.created_at <= m.sends_until AND m.sends_until > ? LIMIT 1)";

/// A loose index scan: it jumps from one flow to the next, so its cost does not depend on the backlogs. A delivery behind
/// the head of a message group is never due.
const DUE: &str = "
WITH RECURSIVE waiting (id) AS (
    -- The first flow after the given one that has waiting deliveries, then the next ones.
    SELECT (SELECT {flow} FROM {due} WHERE state IN ({waiting}) AND {flow} > ? ORDER BY {flow} LIMIT 1)
    UNION ALL
    SELECT (SELECT {flow} FROM {due} WHERE state IN ({waiting}) AND {flow} > waiting.id ORDER BY {flow} LIMIT 1)
    FROM waiting WHERE waiting.id IS NOT NULL
), first (id, due) AS (
    -- The earlier of two due times: of its live deliveries, and of its deliveries of replays.
    SELECT id, min(
        coalesce((SELECT next_attempt_at FROM {due} WHERE {flow} = waiting.id AND is_replay = 0 AND state IN ({waiting})
            ORDER BY next_attempt_at LIMIT 1), {end_of_time}),
        coalesce((SELECT next_attempt_at FROM {due} WHERE {flow} = waiting.id AND is_replay = 1 AND state IN ({waiting})
            ORDER BY next_attempt_at LIMIT 1), {end_of_time})
    )
    FROM waiting WHERE id IS NOT NULL
)
-- A due time at the end of time: only deliveries behind heads remain.
SELECT first.id, first.due, t.limit_group FROM first CROSS JOIN destinations t ON t.id = {destination_of_first}
WHERE first.due < ? AND first.due < {end_of_time} AND t.paused = 0 AND t.deleted_at IS NULL LIMIT +?";

pub(crate) const DUE_DESTINATIONS: &str = sql!(DUE, OF_DESTINATIONS);
pub(crate) const DUE_FLOWS: &str = sql!(DUE, OF_FLOWS);

const IDS: &str = "WITH r (id) AS (VALUES ";

const LAST_SENDS: &str = ") {with}
SELECT r.id, (SELECT max(sent_at) FROM {attempts} WHERE {flow} = r.id AND sent_at IS NOT NULL), {is_claimed},
    (SELECT m.sends_until FROM destinations t CROSS JOIN restored m
        WHERE t.id = {destination} AND m.single = 1 AND t.created_at <= m.sends_until)
FROM {ids} WHERE r.id IS NOT NULL";

pub(crate) static SEND_HISTORY: Batch = Batch::new(IDS, "(?)", sql!(LAST_SENDS, OF_DESTINATIONS));
pub(crate) static SEND_HISTORY_OF_FLOWS: Batch = Batch::new(IDS, "(?)", sql!(LAST_SENDS, OF_FLOWS));

/// One statement, so that a send is recorded or its claim is outstanding.
const COUNTS: &str = ") {with}
SELECT sent_at / ? + 1, count(*) FROM {ids} CROSS JOIN {attempts}
    WHERE a.{flow} = r.id AND sent_at IS NOT NULL AND sent_at > ? GROUP BY 1
UNION ALL SELECT -1, count(*) FROM {claims}
UNION ALL SELECT -2, {restored}";

pub(crate) static SENT_COUNTS: Batch = Batch::new(IDS, "(?)", sql!(COUNTS, OF_DESTINATIONS));
pub(crate) static SENT_COUNTS_OF_FLOWS: Batch = Batch::new(IDS, "(?)", sql!(COUNTS, OF_FLOWS));

/// The places of some deliveries: the entries of both parts of the due index are numbered in the order of claims, up to a
/// bound, and those of the given ids are kept. NULL ids match nothing.
const PLACES_OF: &str = "SELECT id, is_replay, ahead FROM (
    SELECT id, 0 AS is_replay, row_number() OVER (ORDER BY next_attempt_at, id) - 1 AS ahead FROM (
        SELECT id, next_attempt_at FROM {due}
        WHERE {flow} = ? AND is_replay = 0 AND state IN ({waiting}) ORDER BY next_attempt_at, id LIMIT +?
    )
    UNION ALL
    SELECT id, 1, row_number() OVER (ORDER BY next_attempt_at, id) - 1 FROM (
        SELECT id, next_attempt_at FROM {due}
        WHERE {flow} = ? AND is_replay = 1 AND state IN ({waiting}) ORDER BY next_attempt_at, id LIMIT +?
    )
) WHERE id IN (";

pub(crate) static PLACES: Batch = Batch::new(sql!(PLACES_OF, OF_DESTINATIONS), "?", ")");
pub(crate) static PLACES_OF_FLOW: Batch = Batch::new(sql!(PLACES_OF, OF_FLOWS), "?", ")");

/// How many live deliveries are due, up to a bound.
const LIVE_DUE_OF: &str = "SELECT count(*) FROM (
    SELECT 1 FROM {due} WHERE {flow} = ? AND is_replay = 0 AND state IN ({waiting}) AND next_attempt_at <= ? LIMIT +?
)";

pub(crate) const LIVE_DUE: &str = sql!(LIVE_DUE_OF, OF_DESTINATIONS);
pub(crate) const LIVE_DUE_OF_FLOW: &str = sql!(LIVE_DUE_OF, OF_FLOWS);

/// Of so many deliveries the usual cost is read, because a run publishes no more.
pub(crate) const SAMPLE: usize = 512;

/// The same in costs. The last row is the usual cost.
const COSTS: &str = ") {with}
SELECT sent_at / ? + 1, sum(coalesce(d.cost, 1)) FROM {ids} CROSS JOIN {attempts}
    CROSS JOIN deliveries d ON d.id = a.delivery_id
    WHERE a.{flow} = r.id AND sent_at IS NOT NULL AND sent_at > ? GROUP BY 1
UNION ALL SELECT -1, sum(coalesce(cost, 1)) FROM {claims}
UNION ALL SELECT -2, {restored}
UNION ALL SELECT -3, CAST(avg((SELECT avg(coalesce(d.cost, 1)) FROM (
    SELECT id FROM {due} WHERE {flow} = r.id AND is_replay = 0 AND state IN ({waiting})
    ORDER BY next_attempt_at LIMIT ?
) due CROSS JOIN deliveries d ON d.id = due.id)) * 256 AS INTEGER) FROM {ids}";

pub(crate) static SENT_COSTS: Batch = Batch::new(IDS, "(?)", sql!(COSTS, OF_DESTINATIONS));
pub(crate) static SENT_COSTS_OF_FLOWS: Batch = Batch::new(IDS, "(?)", sql!(COSTS, OF_FLOWS));
