-- The record store. Ids are UUIDv7, so they sort by creation time. Times are nanoseconds since the Unix epoch.
-- No statement reads a clock: the caller binds every instant. Requires PostgreSQL 14 or later.

-- A deleted destination stays as a tombstone (deleted_at), because deliveries, attempts and limit changes refer to it.
CREATE TABLE destinations (
    id            uuid    NOT NULL PRIMARY KEY,
    tenant        text    NOT NULL COLLATE "C",
    name          text    NOT NULL,
    url           text    NOT NULL,
    event_types   text    NOT NULL, -- JSON: array of patterns
    rate_limits   text    NOT NULL, -- JSON: array of {limit, period, burst}
    max_in_flight bigint  NOT NULL CHECK (max_in_flight > 0),
    timeout_ms    bigint  NOT NULL CHECK (timeout_ms > 0),
    retry         text    NOT NULL, -- JSON
    headers       text    NOT NULL, -- JSON: array of [name, value]; never logged
    signing       text    NOT NULL, -- JSON: {secret, previous: [secret, until when], style}; never logged
    paused        boolean NOT NULL,
    paused_reason text,
    held_until    bigint,
    held_reason   text,
    breaker       text    NOT NULL, -- JSON: when it opens; null: never
    breaker_state text    NOT NULL, -- JSON: {open, closed_at}
    alerts        text    NOT NULL, -- JSON: the differences from alert_policy
    takes_alerts  boolean NOT NULL, -- whether event_types name Weir's own event types
    ordered       boolean NOT NULL,
    skip_after_attempts bigint CHECK (skip_after_attempts > 0),
    created_at    bigint  NOT NULL,
    updated_at    bigint  NOT NULL,
    deleted_at    bigint,
    -- Rises with every change, so that a process reads only the destinations that have changed since its last read. The
    -- changes of a tenant are made under the tenant's lock, so they become visible in the order of their versions.
    version       bigint  NOT NULL
);
CREATE SEQUENCE destination_versions OWNED BY destinations.version;
ALTER TABLE destinations ALTER COLUMN version SET DEFAULT nextval('destination_versions');
CREATE INDEX destinations_changed ON destinations (tenant, version);
CREATE INDEX destinations_edited ON destinations (updated_at, id);
CREATE INDEX destinations_taking_alerts ON destinations (id) WHERE takes_alerts AND deleted_at IS NULL;

-- Every set of limits of a destination, with the instant from which it applies. The audit judges a send by the limits
-- that applied at the time of the send.
CREATE TABLE limit_changes (
    destination_id uuid   NOT NULL,
    at             bigint NOT NULL,
    rate_limits    text   NOT NULL, -- JSON, as in destinations
    PRIMARY KEY (destination_id, at)
);

-- The alert thresholds of all destinations. Empty until somebody sets them.
CREATE TABLE alert_policy (
    single boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    policy text    NOT NULL -- JSON
);

-- The alerts that were made for each destination, so that each alert is made once.
CREATE TABLE alert_states (
    destination_id uuid   NOT NULL PRIMARY KEY,
    version        bigint NOT NULL, -- rises with every change
    state          text   NOT NULL  -- JSON
);

-- Append-only, one partition per day of the time in the id: retention drops whole days. There is no default partition,
-- because with one no other partition could be detached without blocking every writer. make_partitions keeps the next
-- days ready, and a writer whose day is missing makes it first.
CREATE TABLE events (
    id              uuid    NOT NULL PRIMARY KEY,
    created_at      bigint  NOT NULL,
    data_offset     integer NOT NULL,
    tenant          text    NOT NULL,
    event_type      text    NOT NULL,
    idempotency_key text,
    body            bytea   NOT NULL,
    deliver_at      bigint, -- as the producer set it
    expires_at      bigint,
    coalesce_key    text,
    ordering_key    text,
    traceparent     bytea CHECK (length(traceparent) = 25) -- trace id, span id, flags
) PARTITION BY RANGE (id);
-- No index by tenant or type: each would cost every ingest as much as the event itself. Lists filtered by them scan the
-- ids backwards; `from` and `to` bound the scan.

-- Not in the events table, because a unique key of a partitioned table is unique only within a partition.
CREATE TABLE idempotency_keys (
    tenant          text    NOT NULL COLLATE "C",
    idempotency_key text    NOT NULL COLLATE "C",
    event_id        uuid    NOT NULL,
    deliveries      integer NOT NULL, -- how many the event had: part of the answer to a repeated request
    PRIMARY KEY (tenant, idempotency_key)
);

-- The processes that make claims. Each process raises its beat. When a beat no longer rises, the process is declared
-- dead and its row is deleted.
CREATE TABLE processes (
    id   integer NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    beat bigint  NOT NULL
) WITH (fillfactor = 50);

-- The hot table: narrow, not partitioned. States are small integers, because every index predicate compares them:
--   0 pending, 1 delivering, 2 retrying, 3 delivered, 4 failed, 5 dead, 6 cancelled, 7 superseded, 8 expired.
-- Every step of a delivery changes its state, and so the partial index that it is in. Therefore no update is heap-only,
-- and each index that holds rows of every state costs every step one entry. There are two such indexes, with free space
-- in their leaves for later entries. The deliveries of an event need no index, because their ids begin with the time in
-- the event's id and so are adjacent. No constraint is needed for one delivery per event and destination, because an
-- event is stored once.
CREATE TABLE deliveries (
    id               uuid     NOT NULL PRIMARY KEY WITH (fillfactor = 40),
    event_id         uuid     NOT NULL,
    destination_id   uuid     NOT NULL,
    -- The due time. Kept during a claim, so that a released delivery is due as before.
    next_attempt_at  bigint   NOT NULL,
    -- Counts the claims. A write that settles a claim names its epoch.
    claim_epoch      bigint   NOT NULL DEFAULT 0,
    claim_expires_at bigint,
    created_at       bigint   NOT NULL, -- of the event
    updated_at       bigint   NOT NULL,
    attempts         integer  NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    state            smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 8),
    -- A replay sends it again. Live deliveries and those of replays are claimed separately.
    is_replay        boolean  NOT NULL DEFAULT false,
    -- From the event, if it has them: NULLs take no space and are in no index.
    deliver_at       bigint, -- if it was in the future when the event was stored
    expires_at       bigint,
    coalesce_key     text COLLATE "C", -- the event's type, a space, and its key
    replaced         boolean, -- a newer delivery with its coalesce key came during its claim, so it does not wait again
    -- From the event, if the destination is ordered. The deliveries of one key that have not ended are a message group,
    -- in the order of `group_position`. Every delivery behind the head is `pending` and due at the end of time
    -- (9223372036854775807) until it becomes the head.
    ordering_key     text COLLATE "C",
    group_position   bigint,
    -- For a delivery that a replay has taken.
    replay_id        uuid, -- the last replay that took it
    attempts_before  integer, -- how many of its attempts were made before that replay
    state_before     smallint, -- its state before that replay; restored if the replay is cancelled while the delivery waits
    -- During a claim, the registered process that made it. In no index, because every delivery would pay for it.
    claimed_by       integer CHECK (claimed_by IS NULL OR state = 1),
    CHECK ((state = 1) = (claim_expires_at IS NOT NULL))
) WITH (
    -- Free space for the next version of a row on its own page. Dead row versions are many and short-lived: a vacuum
    -- after each 1 % of them keeps the indexes small, and it runs without delay so that it does not fall behind.
    fillfactor = 75,
    autovacuum_vacuum_scale_factor = 0.01,
    -- A claim starts at the beginning of the due index and skips the dead entries of earlier claims. By default a
    -- vacuum does not clean the indexes if few pages of the table have dead rows.
    vacuum_index_cleanup = on,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
-- Waiting deliveries only. For each destination: the live deliveries, then those of replays, each in due order. The
-- included columns make the index cover the counts.
CREATE INDEX deliveries_due ON deliveries (destination_id, is_replay, next_attempt_at, id) INCLUDE (created_at, state)
    WHERE state IN (0, 2);
-- Outstanding claims: as many entries as sends in flight, so the index stays in memory and costs little.
CREATE INDEX deliveries_claimed ON deliveries (destination_id, claim_expires_at) WHERE state = 1;
CREATE INDEX deliveries_of_destination ON deliveries (destination_id, id) WITH (fillfactor = 40);
-- Deliveries that ended without success: they are rare, and people search for them.
CREATE INDEX deliveries_ended ON deliveries (state, id) WHERE state > 3;
CREATE INDEX deliveries_ended_of_destination ON deliveries (destination_id, state, id) WHERE state > 3;
-- Waiting deliveries that expire.
CREATE INDEX deliveries_expiring ON deliveries (expires_at) WHERE expires_at IS NOT NULL AND state IN (0, 2);

-- Deliveries that a newer one with the same coalesce key supersedes, or would supersede if they were not claimed.
CREATE INDEX deliveries_coalescing ON deliveries (destination_id, coalesce_key)
    WHERE coalesce_key IS NOT NULL AND state < 3;

-- Message groups: the head (due or claimed) is first, then the deliveries behind it in their order.
CREATE INDEX deliveries_message_groups ON deliveries (destination_id, ordering_key, next_attempt_at, group_position)
    WHERE ordering_key IS NOT NULL AND state < 3;

-- Positions in message groups: one number for each call of store_events with ordered deliveries, taken under the locks
-- of their keys. So positions follow the order in which events were stored, even if the clocks that made the ids
-- disagree.
CREATE SEQUENCE group_positions;
-- The deliveries that a replay has taken, by state.
CREATE INDEX deliveries_replayed ON deliveries (replay_id, state) WHERE replay_id IS NOT NULL;

-- Replays. Phases: 0 moving, 1 moved, 2 completed, 3 cancelling, 4 cancelled.
CREATE TABLE replays (
    id         uuid     NOT NULL PRIMARY KEY,
    filter     text     NOT NULL, -- JSON
    phase      smallint NOT NULL CHECK (phase BETWEEN 0 AND 4),
    created_at bigint   NOT NULL,
    ended_at   bigint,
    -- Where the next step continues: the index of the state in the filter, and the last delivery that a step has read.
    place      integer  NOT NULL DEFAULT 0,
    seen       uuid     NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    moved      bigint   NOT NULL DEFAULT 0,
    total      bigint   NOT NULL, -- counted when the replay is created; the number moved once all are moved
    -- Counted when the replay ends; while the replay is open, counted at each read.
    delivered  bigint   NOT NULL DEFAULT 0,
    failed     bigint   NOT NULL DEFAULT 0,
    cancelled  bigint   NOT NULL DEFAULT 0
);
CREATE INDEX replays_open ON replays (id) WHERE phase IN (0, 1, 3);

-- The destinations with deliveries of an open replay.
CREATE TABLE replay_destinations (
    replay_id      uuid NOT NULL,
    destination_id uuid NOT NULL,
    PRIMARY KEY (replay_id, destination_id)
);

-- Append-only, one partition per day of the time in the delivery's id: the attempts of a delivery are in the partition
-- of the same day as its event, are found by one lookup, and are dropped with the event. Outcomes: 0 delivered, 1
-- retryable, 2 rejected, 3 unknown.
CREATE TABLE attempts (
    delivery_id    uuid     NOT NULL,
    id             uuid     NOT NULL,
    destination_id uuid     NOT NULL,
    sent_at        bigint, -- NULL: there was no connection, so nothing was sent
    number         integer  NOT NULL,
    duration_ms    bigint   NOT NULL,
    outcome        smallint NOT NULL CHECK (outcome BETWEEN 0 AND 3),
    status_code    integer,
    error          text,
    -- Why there was no usable answer: 0 dns, 1 connect, 2 tls, 3 timeout, 4 broken, 5 forbidden; NULL: there was one,
    -- or the reason is unknown.
    failure        smallint,
    response_body  bytea, -- UTF-8; not text, because text cannot hold the character 0
    PRIMARY KEY (delivery_id, number)
) PARTITION BY RANGE (delivery_id);
CREATE INDEX attempts_of_destination ON attempts (destination_id, sent_at) WHERE sent_at IS NOT NULL;

-- The keys that the API created. Roles: ingest, read, operate, admin.
CREATE TABLE api_keys (
    id         uuid   NOT NULL PRIMARY KEY,
    name       text   NOT NULL,
    role       text   NOT NULL CHECK (role IN ('ingest', 'read', 'operate', 'admin')),
    tenants    text, -- JSON: array of tenants. NULL: all tenants
    digest     bytea  NOT NULL UNIQUE CHECK (length(digest) = 32), -- SHA-256; the key itself is not stored
    created_at bigint NOT NULL,
    expires_at bigint
);

-- After the restore of a backup: sends that are not in the record may have started until this time. Empty: never
-- restored.
CREATE TABLE restored (
    single      boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    sends_until bigint  NOT NULL
);

-- The programs that may use this schema: those that know at least the migration with this number
-- (migrations/README.md).
CREATE TABLE schema_marker (
    single         boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    oldest_program integer NOT NULL
);
INSERT INTO schema_marker (oldest_program) VALUES (1);
