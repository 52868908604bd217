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

-- Stores events, their idempotency keys and their deliveries, unless the caller's view is out of date: a destination of
-- one of the tenants has a version above the one that the caller has seen, or one of the keys is known. Returns whether
-- it stored them. It takes the locks first, so that each later statement sees every commit from before the locks were
-- granted.
--
-- A delivery is due at once, with the time of its event as its due time, unless it is delayed. A delivery of the fast
-- path is stored as claimed by `owner`, until the given instant; if `owner` has been declared dead, nothing is stored.
-- An array of a rarely used property is NULL when no row has a value; unnest fills the column with NULLs.
--
-- A new delivery supersedes the waiting deliveries with its coalesce key and marks the claimed ones as replaced.
-- Coalesce keys have locks of their own: without them two concurrent calls with the same key would not see each other's
-- deliveries, and both would wait. Message groups have locks for the same reason, and because the end of a head must
-- see every delivery behind it (advance_message_groups). Returns the message groups whose heads may have been
-- superseded: the caller advances them after its commit.
CREATE FUNCTION store_events(
    lock_space integer, locks integer[], key_space integer, key_locks integer[], tenants text[], versions bigint[],
    owner integer, event_ids uuid[], event_tenants text[], event_types text[], event_times bigint[], event_keys text[],
    data_offsets integer[], bodies bytea[], event_starts bigint[], event_ends bigint[], coalesce_keys text[],
    ordering_keys text[], traceparents bytea[], delivery_counts integer[],
    delivery_ids uuid[], delivery_events uuid[], delivery_destinations uuid[], delivery_times bigint[],
    claimed_until bigint[], delayed_until bigint[], delivery_ends bigint[],
    delivery_coalesce_keys text[], delivery_superseded boolean[], delivery_ordering_keys text[],
    delivery_follows boolean[],
    OUT stored boolean, OUT freed_destinations uuid[], OUT freed_keys text[]
) LANGUAGE plpgsql AS $$
DECLARE
    one_lock       integer;
    first_position bigint;
    keyed          boolean := array_length(array_remove(event_keys, NULL), 1) > 0;
BEGIN
    stored := false;
    FOREACH one_lock IN ARRAY locks LOOP
        PERFORM pg_advisory_xact_lock_shared(lock_space, one_lock);
    END LOOP;
    FOREACH one_lock IN ARRAY key_locks LOOP
        PERFORM pg_advisory_xact_lock(key_space, one_lock);
    END LOOP;
    IF EXISTS (
        SELECT FROM unnest(tenants, versions) AS r (tenant, version)
        JOIN destinations t ON t.tenant = r.tenant AND t.version > r.version
    ) THEN
        RETURN;
    END IF;
    IF owner IS NOT NULL AND NOT EXISTS (SELECT FROM processes WHERE id = owner) THEN
        RETURN;
    END IF;
    -- The query is in an IF of its own, because starting it costs time for each row even if there are no keys.
    IF keyed THEN
        IF EXISTS (
            SELECT FROM unnest(event_tenants, event_keys) AS r (tenant, idempotency_key)
            JOIN idempotency_keys k ON k.tenant = r.tenant AND k.idempotency_key = r.idempotency_key
        ) THEN
            RETURN;
        END IF;
    END IF;
    INSERT INTO events (id, tenant, event_type, created_at, idempotency_key, data_offset, body,
        deliver_at, expires_at, coalesce_key, ordering_key, traceparent)
    SELECT * FROM unnest(event_ids, event_tenants, event_types, event_times, event_keys, data_offsets, bodies,
        event_starts, event_ends, coalesce_keys, ordering_keys, traceparents);
    IF delivery_coalesce_keys IS NOT NULL THEN
        -- Rows are locked in the order in which claims lock them, so that the two cannot deadlock.
        WITH older AS MATERIALIZED (
            SELECT d.id, r.created_at
            FROM unnest(delivery_destinations, delivery_coalesce_keys, delivery_superseded, delivery_times)
                AS r (destination_id, coalesce_key, superseded, created_at)
            JOIN deliveries d ON d.destination_id = r.destination_id AND d.coalesce_key = r.coalesce_key
                AND d.coalesce_key IS NOT NULL AND d.state < 3
            WHERE NOT r.superseded
            ORDER BY d.destination_id, d.is_replay, d.next_attempt_at, d.id FOR UPDATE OF d
        ), changed AS (
            UPDATE deliveries d SET replaced = true, updated_at = older.created_at,
                state = CASE WHEN d.state = 1 THEN 1 ELSE 7 END
            FROM older WHERE d.id = older.id AND d.state + 0 IN (0, 1, 2)
            RETURNING d.destination_id, d.ordering_key, d.state
        )
        SELECT array_agg(destination_id), array_agg(ordering_key) INTO freed_destinations, freed_keys
        FROM changed WHERE state = 7 AND ordering_key IS NOT NULL;
    END IF;
    IF delivery_ordering_keys IS NOT NULL THEN
        first_position := nextval('group_positions') * 65536;
    END IF;
    INSERT INTO deliveries (id, event_id, destination_id, next_attempt_at, created_at, updated_at,
        state, claim_epoch, claim_expires_at, claimed_by, deliver_at, expires_at,
        coalesce_key, ordering_key, group_position)
    SELECT r.id, r.event_id, r.destination_id,
        -- Evaluated only for an ordered delivery. A scalar subquery, because the planner could turn EXISTS into a scan
        -- of all message groups.
        CASE WHEN r.ordering_key IS NOT NULL AND (r.follows OR (
            SELECT true FROM deliveries d WHERE d.destination_id = r.destination_id AND d.ordering_key = r.ordering_key
                AND d.ordering_key IS NOT NULL AND d.state < 3 LIMIT 1
        )) THEN 9223372036854775807 ELSE coalesce(r.deliver_at, r.created_at) END,
        r.created_at, r.created_at,
        CASE WHEN r.superseded THEN 7 ELSE (r.claimed_until IS NOT NULL)::integer END,
        (r.claimed_until IS NOT NULL)::integer, r.claimed_until,
        CASE WHEN r.claimed_until IS NOT NULL THEN owner END, r.deliver_at, r.expires_at, r.coalesce_key,
        r.ordering_key, CASE WHEN r.ordering_key IS NOT NULL THEN first_position + r.ordinal END
    FROM unnest(delivery_ids, delivery_events, delivery_destinations, delivery_times, claimed_until, delayed_until,
            delivery_ends, delivery_coalesce_keys, delivery_superseded, delivery_ordering_keys, delivery_follows)
        WITH ORDINALITY AS r (id, event_id, destination_id, created_at, claimed_until, deliver_at, expires_at, coalesce_key,
            superseded, ordering_key, follows, ordinal);
    IF keyed THEN
        INSERT INTO idempotency_keys (event_id, tenant, idempotency_key, deliveries)
        SELECT * FROM unnest(event_ids, event_tenants, event_keys, delivery_counts) AS r (id, tenant, idempotency_key, deliveries)
        WHERE idempotency_key IS NOT NULL ORDER BY tenant, idempotency_key;
    END IF;
    stored := true;
END
$$;

-- Makes the next delivery of each message group its head, if the group has no head. Called after the commit that ended
-- a head. It takes the locks of the keys first, so that each later statement sees every delivery that was stored at the
-- same time. The skipped deliveries leave their groups first. A new head gets the due time that it was stored with, or
-- the time at which a replay moved it, so that it takes its place among the live deliveries. Returns the ordinal of
-- each group with a new head, and when the head is due.
CREATE FUNCTION advance_message_groups(
    key_space integer, key_locks integer[], destination_ids uuid[], ordering_keys text[], skipped uuid[]
) RETURNS TABLE (ordinal bigint, due bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    one_lock integer;
BEGIN
    FOREACH one_lock IN ARRAY key_locks LOOP
        PERFORM pg_advisory_xact_lock(key_space, one_lock);
    END LOOP;
    IF array_length(skipped, 1) > 0 THEN
        UPDATE deliveries SET ordering_key = NULL
        WHERE id = ANY (skipped) AND ordering_key IS NOT NULL AND state + 0 IN (0, 1, 2);
    END IF;
    RETURN QUERY
    WITH foremost AS MATERIALIZED (
        SELECT r.ordinal, d.id, d.next_attempt_at
        FROM unnest(destination_ids, ordering_keys) WITH ORDINALITY AS r (destination_id, ordering_key, ordinal)
        CROSS JOIN LATERAL (
            SELECT id, next_attempt_at FROM deliveries
            WHERE destination_id = r.destination_id AND ordering_key = r.ordering_key
                AND ordering_key IS NOT NULL AND state < 3
            ORDER BY next_attempt_at, group_position LIMIT 1
        ) d
    )
    UPDATE deliveries d
    SET next_attempt_at = CASE WHEN d.replay_id IS NULL THEN coalesce(d.deliver_at, d.created_at) ELSE d.updated_at END
    FROM foremost f
    WHERE d.id = f.id AND f.next_attempt_at = 9223372036854775807
        AND d.state + 0 IN (0, 2) AND d.next_attempt_at = 9223372036854775807
    RETURNING f.ordinal, d.next_attempt_at;
END
$$;

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

-- The smallest id of a day. Days are counted from the Unix epoch.
CREATE FUNCTION first_id_of_day(day integer) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT (lpad(to_hex(day::bigint * 86400000), 12, '0') || repeat('0', 20))::uuid
$$;

-- Makes the missing partitions of some days, and returns how many days it made. One process makes partitions at a time.
-- A table is created first and then attached, because that blocks neither readers nor writers of the other days.
CREATE FUNCTION make_partitions(days integer[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    missing integer;
    made    integer := 0;
    parent  text;
    child   text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('weir.make_partitions'));
    FOREACH missing IN ARRAY days LOOP
        FOREACH parent IN ARRAY ARRAY['events', 'attempts'] LOOP
            child := format('%s_%s', parent, to_char(DATE '1970-01-01' + missing, 'YYYYMMDD'));
            IF to_regclass(child) IS NULL THEN
                EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', child, parent);
                EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, child,
                    first_id_of_day(missing), first_id_of_day(missing + 1));
                made := made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN made / 2;
END
$$;

-- Drops the partitions of a day. Every user of the tables waits for this function, so it must be quick: if it has to
-- wait for a lock for longer than 100 ms, or the day has a delivery again, it fails with an error that means "in use".
CREATE FUNCTION drop_partitions(day integer) RETURNS void LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    parent text;
BEGIN
    FOREACH parent IN ARRAY ARRAY['events', 'attempts'] LOOP
        EXECUTE format('DROP TABLE IF EXISTS %I', format('%s_%s', parent, to_char(DATE '1970-01-01' + day, 'YYYYMMDD')));
    END LOOP;
    IF EXISTS (SELECT FROM deliveries WHERE id >= first_id_of_day(day) AND id < first_id_of_day(day + 1)) THEN
        RAISE EXCEPTION 'the day still has deliveries' USING ERRCODE = 'object_in_use';
    END IF;
END
$$;

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
