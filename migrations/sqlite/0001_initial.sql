-- The record store. Ids are the 16 bytes of a UUIDv7, so they sort by creation time. Times are nanoseconds since the
-- Unix epoch. Nothing here reads a clock: the caller binds every instant.

-- A deleted destination stays as a tombstone (deleted_at), because deliveries, attempts and limit changes refer to it.
-- The engine keeps the other destinations in memory and loads them from this table when it starts.
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
    signing       TEXT    NOT NULL, -- JSON: {secret, previous: [secret, expiry], style}; never logged
    paused        INTEGER NOT NULL CHECK (paused IN (0, 1)),
    paused_reason TEXT,
    held_until    INTEGER,
    held_reason   TEXT,
    breaker       TEXT    NOT NULL, -- JSON: the conditions that open it; null: it never opens
    breaker_state TEXT    NOT NULL, -- JSON: {open, closed_at}
    alerts        TEXT    NOT NULL, -- JSON: the differences from alert_policy
    ordered       INTEGER NOT NULL CHECK (ordered IN (0, 1)),
    skip_after_attempts INTEGER CHECK (skip_after_attempts > 0),
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    deleted_at    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX destinations_edited ON destinations (updated_at, id);

-- Every set of limits that a destination had, and the instant from which it applied. The audit judges a send by the
-- limits that applied when it started.
CREATE TABLE limit_changes (
    destination_id BLOB    NOT NULL,
    at             INTEGER NOT NULL,
    rate_limits    TEXT    NOT NULL, -- JSON, as in destinations
    PRIMARY KEY (destination_id, at)
) STRICT, WITHOUT ROWID;

-- The alert thresholds for all destinations. Empty until they are set.
CREATE TABLE alert_policy (
    single INTEGER NOT NULL PRIMARY KEY CHECK (single = 1),
    policy TEXT    NOT NULL -- JSON
) STRICT;

-- The alerts already published for each destination, so that each is published once.
CREATE TABLE alert_states (
    destination_id BLOB    NOT NULL PRIMARY KEY,
    version        INTEGER NOT NULL, -- rises with every change
    state          TEXT    NOT NULL  -- JSON
) STRICT, WITHOUT ROWID;

-- Append-only. The table has a rowid, so that bodies are appended to its pages; an index finds the ids.
CREATE TABLE events (
    id              BLOB    NOT NULL CHECK (length(id) = 16),
    tenant          TEXT    NOT NULL,
    event_type      TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    idempotency_key TEXT,
    data_offset     INTEGER NOT NULL,
    deliveries      INTEGER NOT NULL, -- the number of its deliveries
    deliver_at      INTEGER, -- as the producer set it
    expires_at      INTEGER,
    coalesce_key    TEXT,
    ordering_key    TEXT,
    traceparent     BLOB CHECK (length(traceparent) = 25), -- trace id, span id, flags
    body            BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_id ON events (id);
CREATE UNIQUE INDEX events_idempotency ON events (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- No index by tenant or type: each would cost every ingest as much as the event itself. Lists with these filters read
-- the ids backwards on a reader connection; `from` and `to` bound the range.

-- The hot table: narrow, with rows updated in place when a delivery changes its state. States are small integers,
-- because every index predicate compares them and 0 and 1 take no room in a row. Predicates use < and >, because SQLite
-- builds a table for a list of more than two values, again for each row that is written:
--   0 pending, 1 delivering, 2 retrying, 3 delivered, 4 failed, 5 dead, 6 cancelled, 7 superseded, 8 expired.
-- There is one delivery for each event and destination. Its id begins with the same millisecond as the id of its event,
-- so the deliveries of an event are next to each other and need no index.
CREATE TABLE deliveries (
    id               BLOB    NOT NULL PRIMARY KEY,
    event_id         BLOB    NOT NULL,
    destination_id   BLOB    NOT NULL,
    state            INTEGER NOT NULL CHECK (state BETWEEN 0 AND 8),
    attempts         INTEGER NOT NULL,
    -- 1: a replay sends it again; live deliveries are claimed apart from it.
    is_replay        INTEGER NOT NULL DEFAULT 0 CHECK (is_replay IN (0, 1)),
    -- When it is due. Kept while it is claimed, so that a released delivery is due as before.
    next_attempt_at  INTEGER NOT NULL,
    claim_epoch      INTEGER NOT NULL DEFAULT 0, -- rises with every claim; results and releases name their epoch
    claim_expires_at INTEGER, -- while it is claimed
    created_at       INTEGER NOT NULL, -- of the event
    updated_at       INTEGER NOT NULL,
    -- Copied from the event where it has them. A NULL takes one byte and is in no index.
    deliver_at       INTEGER, -- if it was in the future at ingest
    expires_at       INTEGER,
    coalesce_key     TEXT, -- the event's type, a space, and its key
    replaced         INTEGER, -- 1: a newer delivery of its key was stored while this one was in flight, so it is not retried
    -- Set where the destination is ordered. The deliveries of one destination and key that have not ended are a message
    -- group, ordered by `group_position`. Those behind the head are `pending` and due at the end of time
    -- (9223372036854775807) until they become the head.
    ordering_key     TEXT,
    group_position   INTEGER,
    -- Set when a replay sends the delivery again.
    replay_id        BLOB, -- the last replay that took it
    attempts_before  INTEGER, -- its number of attempts before that replay
    state_before     INTEGER -- its state before that replay, restored if the replay is cancelled while the delivery waits
) STRICT, WITHOUT ROWID;
-- Waiting deliveries only: by destination, live deliveries before those of replays, the oldest due first. `state` makes
-- the index cover the counts.
CREATE INDEX deliveries_due ON deliveries (destination_id, is_replay, next_attempt_at, id, state) WHERE state IN (0, 2);
-- Outstanding claims: as many entries as sends in flight, so the index stays in memory and costs little.
CREATE INDEX deliveries_claimed ON deliveries (destination_id, claim_expires_at) WHERE state = 1;
CREATE INDEX deliveries_of_destination ON deliveries (destination_id, id);
-- Deliveries that ended undelivered: rare, and the ones that people search for.
CREATE INDEX deliveries_ended ON deliveries (state, id) WHERE state > 3;
CREATE INDEX deliveries_ended_of_destination ON deliveries (destination_id, state, id) WHERE state > 3;
-- Waiting deliveries that expire.
CREATE INDEX deliveries_expiring ON deliveries (expires_at) WHERE expires_at IS NOT NULL AND state IN (0, 2);

-- Deliveries that a newer one supersedes, or marks as replaced when they are in flight.
CREATE INDEX deliveries_coalescing ON deliveries (destination_id, coalesce_key)
    WHERE coalesce_key IS NOT NULL AND state < 3;

-- Message groups: the head, which is due or in flight, then the deliveries behind it in their order. `state` makes the
-- index cover the queries of the sweep and of the start.
CREATE INDEX deliveries_message_groups ON deliveries (destination_id, ordering_key, next_attempt_at, group_position, state)
    WHERE ordering_key IS NOT NULL AND state < 3;
-- The deliveries of a replay, by state.
CREATE INDEX deliveries_replayed ON deliveries (replay_id, state) WHERE replay_id IS NOT NULL;

-- Replays. Phases: 0 moving, 1 moved, 2 completed, 3 cancelling, 4 cancelled.
CREATE TABLE replays (
    id         BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    filter     TEXT    NOT NULL, -- JSON
    phase      INTEGER NOT NULL CHECK (phase BETWEEN 0 AND 4),
    created_at INTEGER NOT NULL,
    ended_at   INTEGER,
    -- Where the next step continues: the index of the state in the filter (1 byte), and the last delivery read (16
    -- bytes).
    place      BLOB,
    moved      INTEGER NOT NULL,
    total      INTEGER NOT NULL, -- the count at the beginning; once all deliveries are moved, their number
    -- The counts at the end. While the replay is open, each read counts the deliveries.
    delivered  INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    cancelled  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX replays_open ON replays (id) WHERE phase IN (0, 1, 3);

-- The destinations to which an open replay may have deliveries to send.
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
    sent_at        INTEGER, -- NULL: no connection, so nothing was sent
    duration_ms    INTEGER NOT NULL,
    outcome        INTEGER NOT NULL CHECK (outcome BETWEEN 0 AND 3),
    status_code    INTEGER,
    error          TEXT,
    -- Why there was no usable response: 0 dns, 1 connect, 2 tls, 3 timeout, 4 broken, 5 forbidden. NULL: there was one,
    -- or the outcome is unknown.
    failure        INTEGER,
    response_body  TEXT,
    PRIMARY KEY (delivery_id, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX attempts_of_destination ON attempts (destination_id, sent_at) WHERE sent_at IS NOT NULL;

-- The keys that the API created. Roles: ingest, read, operate, admin.
CREATE TABLE api_keys (
    id         BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    name       TEXT    NOT NULL,
    role       TEXT    NOT NULL CHECK (role IN ('ingest', 'read', 'operate', 'admin')),
    tenants    TEXT, -- JSON: array of tenants. NULL: all tenants
    digest     BLOB    NOT NULL UNIQUE CHECK (length(digest) = 32), -- SHA-256; the key itself is not stored
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT;

-- After a backup was restored: sends that are not recorded here may have started until this instant. Empty: never
-- restored.
CREATE TABLE restored (
    single      INTEGER NOT NULL PRIMARY KEY CHECK (single = 1),
    sends_until INTEGER NOT NULL
) STRICT;

-- Programs that know at least the migration with this number may use the schema (migrations/README.md).
CREATE TABLE schema_marker (
    single         INTEGER NOT NULL PRIMARY KEY CHECK (single = 1),
    oldest_program INTEGER NOT NULL
) STRICT;
INSERT INTO schema_marker (single, oldest_program) VALUES (1, 1);
