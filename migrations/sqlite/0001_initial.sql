-- The record store. Ids are the 16 bytes of a UUIDv7, so they sort by the time they were made. Times are nanoseconds
-- since the Unix epoch. Nothing here reads a clock: every instant is bound by the caller.

-- A deleted destination stays as a tombstone (deleted_at), because deliveries, attempts and limit changes refer to it.
-- The engine keeps the live ones in memory; this table is what it starts from.
CREATE TABLE destinations (
    id            BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    tenant        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    url           TEXT    NOT NULL,
    event_types   TEXT    NOT NULL, -- JSON: array of patterns
    rate_limits   TEXT    NOT NULL, -- JSON: array of {limit, period, burst}
    max_in_flight INTEGER NOT NULL CHECK (max_in_flight > 0),
    timeout_ms    INTEGER NOT NULL CHECK (timeout_ms > 0),
    retry         TEXT    NOT NULL, -- JSON
    headers       TEXT    NOT NULL, -- JSON: array of [name, value]; never logged
    signing       TEXT    NOT NULL, -- JSON: {secret, previous: [secret, until when], style}; never logged
    paused        INTEGER NOT NULL CHECK (paused IN (0, 1)),
    paused_reason TEXT,
    held_until    INTEGER,
    held_reason   TEXT,
    breaker       TEXT    NOT NULL, -- JSON: when it opens; null: never
    breaker_state TEXT    NOT NULL, -- JSON: {open, closed_at}
    alerts        TEXT    NOT NULL, -- JSON: what differs from the policy of all
    ordered       INTEGER NOT NULL CHECK (ordered IN (0, 1)),
    skip_after_attempts INTEGER CHECK (skip_after_attempts > 0),
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    deleted_at    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX destinations_edited ON destinations (updated_at, id);

-- Every set of limits a destination ever had, from which instant on. The audit judges a send by the limits of its time.
CREATE TABLE limit_changes (
    destination_id BLOB    NOT NULL,
    at             INTEGER NOT NULL,
    rate_limits    TEXT    NOT NULL, -- JSON, as in destinations
    PRIMARY KEY (destination_id, at)
) STRICT, WITHOUT ROWID;

-- The thresholds of all destinations, once somebody has set them.
CREATE TABLE alert_policy (
    single INTEGER NOT NULL PRIMARY KEY CHECK (single = 1),
    policy TEXT    NOT NULL -- JSON
) STRICT;

-- What has been told of destinations, so that it is told once.
CREATE TABLE alert_states (
    destination_id BLOB    NOT NULL PRIMARY KEY,
    version        INTEGER NOT NULL, -- rises with every change
    told           TEXT    NOT NULL  -- JSON
) STRICT, WITHOUT ROWID;

-- Append-only. A table with a rowid, because bodies fill its pages by plain appending; the ids are found by an index.
CREATE TABLE events (
    id              BLOB    NOT NULL CHECK (length(id) = 16),
    tenant          TEXT    NOT NULL,
    event_type      TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    idempotency_key TEXT,
    data_offset     INTEGER NOT NULL,
    deliveries      INTEGER NOT NULL, -- how many it was fanned out to
    deliver_at      INTEGER, -- as the producer named it
    expires_at      INTEGER,
    coalesce_key    TEXT,
    ordering_key    TEXT,
    traceparent     BLOB CHECK (length(traceparent) = 25), -- trace id, span id, flags
    body            BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_id ON events (id);
CREATE UNIQUE INDEX events_idempotency ON events (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- No index by tenant or type: each would cost every ingest as much as the event itself. Lists filtered by them walk the ids
-- backwards on a reader connection; `from` and `to` bound the walk.

-- The hot table: narrow, and rewritten in place as a delivery moves on. States are small integers, because they are
-- compared in every index predicate and 0 and 1 take no room in a row. Predicates compare by < and >, because SQLite makes a
-- table of a list of more than two, anew for each row that is written:
--   0 pending, 1 delivering, 2 retrying, 3 delivered, 4 failed, 5 dead, 6 cancelled, 7 superseded, 8 expired.
-- One for each event and destination. Its id begins with the millisecond that its event's id begins with, so the deliveries
-- of an event lie close together and need no index.
CREATE TABLE deliveries (
    id               BLOB    NOT NULL PRIMARY KEY,
    event_id         BLOB    NOT NULL,
    destination_id   BLOB    NOT NULL,
    state            INTEGER NOT NULL CHECK (state BETWEEN 0 AND 8),
    attempts         INTEGER NOT NULL,
    -- 1: it waits, or waited, behind everything live, because a replay sends it again.
    is_replay        INTEGER NOT NULL DEFAULT 0 CHECK (is_replay IN (0, 1)),
    -- When it is due. Kept while it is claimed, so that a claim given back is due as before.
    next_attempt_at  INTEGER NOT NULL,
    claim_epoch      INTEGER NOT NULL DEFAULT 0, -- rises with every claim; results and releases name the one they belong to
    claim_expires_at INTEGER, -- while it is claimed
    created_at       INTEGER NOT NULL, -- of the event
    updated_at       INTEGER NOT NULL,
    -- Of the event, where there is one: NULLs take a byte and are in no index.
    deliver_at       INTEGER, -- when it lay ahead
    expires_at       INTEGER,
    coalesce_key     TEXT, -- the event's type, a space, and its key
    replaced         INTEGER, -- 1: while it was under way a newer one of its key came, so it does not wait again
    -- Of the event, where its destination keeps an order. Those of one key that have not ended are a line, in the order of `line`.
    -- Who is not the first of it is `pending` and due at the end of time (9223372036854775807), until its turn has come.
    ordering_key     TEXT,
    line             INTEGER,
    -- Of a delivery that was sent again.
    replay_id        BLOB, -- the last replay that took it
    attempts_before  INTEGER, -- how many of its attempts were made before that
    state_before     INTEGER -- what it was before, and is again should the replay be cancelled while it waits
) STRICT, WITHOUT ROWID;
-- Only what waits, one destination after the other, what is live before what replays send again, the oldest due first.
-- `state` makes it cover the counts.
CREATE INDEX deliveries_due ON deliveries (destination_id, is_replay, next_attempt_at, id, state) WHERE state IN (0, 2);
-- Claims that are out: as many entries as sends are under way, so it stays in memory and costs little.
CREATE INDEX deliveries_claimed ON deliveries (destination_id, claim_expires_at) WHERE state = 1;
CREATE INDEX deliveries_of_destination ON deliveries (destination_id, id);
-- What ended without being delivered: rare, and what people look for.
CREATE INDEX deliveries_ended ON deliveries (state, id) WHERE state > 3;
CREATE INDEX deliveries_ended_of_destination ON deliveries (destination_id, state, id) WHERE state > 3;
-- What waits and will not do so for ever.
CREATE INDEX deliveries_expiring ON deliveries (expires_at) WHERE expires_at IS NOT NULL AND state IN (0, 2);

-- What gives way to a newer one, or would if it were not under way.
CREATE INDEX deliveries_coalescing ON deliveries (destination_id, coalesce_key)
    WHERE coalesce_key IS NOT NULL AND state < 3;

-- Lines: who is due or under way comes first, and then those behind, in their order. `state` makes it cover the looks of the
-- sweep and of the start.
CREATE INDEX deliveries_message_groups ON deliveries (destination_id, ordering_key, next_attempt_at, line, state)
    WHERE ordering_key IS NOT NULL AND state < 3;
-- What a replay has taken, by what became of it.
CREATE INDEX deliveries_replayed ON deliveries (replay_id, state) WHERE replay_id IS NOT NULL;

-- Replays. Phases: 0 moving its deliveries, 1 moved, 2 completed, 3 cancelling, 4 cancelled.
CREATE TABLE replays (
    id         BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    filter     TEXT    NOT NULL, -- JSON
    phase      INTEGER NOT NULL CHECK (phase BETWEEN 0 AND 4),
    created_at INTEGER NOT NULL,
    ended_at   INTEGER,
    -- Where the next step goes on: the place of the state in the filter (1 byte), and the last delivery seen (16).
    place      BLOB,
    moved      INTEGER NOT NULL,
    total      INTEGER NOT NULL, -- as counted at the beginning, until all is moved
    -- As counted at the end; while it is under way they are counted when somebody asks.
    delivered  INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    cancelled  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX replays_open ON replays (id) WHERE phase IN (0, 1, 3);

-- The destinations to which a replay under way has something to send.
CREATE TABLE replay_destinations (
    replay_id      BLOB NOT NULL,
    destination_id BLOB NOT NULL,
    PRIMARY KEY (replay_id, destination_id)
) STRICT, WITHOUT ROWID;

-- Append-only. Outcomes: 0 delivered, 1 retryable, 2 rejected, 3 unknown.
CREATE TABLE attempts (
    delivery_id    BLOB    NOT NULL,
    number         INTEGER NOT NULL,
    id             BLOB    NOT NULL,
    destination_id BLOB    NOT NULL,
    sent_at        INTEGER, -- NULL: no connection, so nothing left
    duration_ms    INTEGER NOT NULL,
    outcome        INTEGER NOT NULL CHECK (outcome BETWEEN 0 AND 3),
    status_code    INTEGER,
    error          TEXT,
    -- Why there was no usable answer: 0 dns, 1 connect, 2 tls, 3 timeout, 4 broken, 5 forbidden; NULL: there was one, or
    -- nobody knows.
    failure        INTEGER,
    response_body  TEXT,
    PRIMARY KEY (delivery_id, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX attempts_of_destination ON attempts (destination_id, sent_at) WHERE sent_at IS NOT NULL;

-- After the restore of a backup: until when sends may have started that the record does not know of. Empty: never restored.
CREATE TABLE restored (
    single      INTEGER NOT NULL PRIMARY KEY CHECK (single = 1),
    sends_until INTEGER NOT NULL
) STRICT;

-- Which programs may use this schema: those that know at least the migration with this number (migrations/README.md).
CREATE TABLE schema_marker (
    single         INTEGER NOT NULL PRIMARY KEY CHECK (single = 1),
    oldest_program INTEGER NOT NULL
) STRICT;
INSERT INTO schema_marker (single, oldest_program) VALUES (1, 1);
