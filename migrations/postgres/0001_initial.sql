-- The record store. Ids are UUIDv7, so they sort by the time they were made. Times are nanoseconds since the Unix epoch.
-- Nothing here reads a clock: every instant is bound by the caller. Needs PostgreSQL 14.

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
    breaker       text   NOT NULL, -- JSON: when it opens; null: never
    breaker_state text   NOT NULL, -- JSON: {open, closed_at}
    alerts        text    NOT NULL, -- JSON: what differs from the policy of all
    takes_alerts       boolean NOT NULL, -- whether event_types name Weir's own
    ordered       boolean NOT NULL,
    skip_after_attempts bigint CHECK (skip_after_attempts > 0),
    created_at    bigint  NOT NULL,
    updated_at    bigint  NOT NULL,
    deleted_at    bigint,
    -- Rises with every change, so that each process reads only what changed since it looked. The changes of a tenant are
    -- made under its lock, which is what makes them visible in the order of their versions.
    version       bigint  NOT NULL
);
CREATE SEQUENCE destination_versions OWNED BY destinations.version;
ALTER TABLE destinations ALTER COLUMN version SET DEFAULT nextval('destination_versions');
CREATE INDEX destinations_changed ON destinations (tenant, version);
CREATE INDEX destinations_edited ON destinations (updated_at, id);
CREATE INDEX destinations_taking_alerts ON destinations (id) WHERE takes_alerts AND deleted_at IS NULL;

-- Every set of limits a destination ever had, from which instant on. The audit judges a send by the limits of its time.
CREATE TABLE limit_changes (
    destination_id uuid   NOT NULL,
    at             bigint NOT NULL,
    rate_limits    text   NOT NULL, -- JSON, as in destinations
    PRIMARY KEY (destination_id, at)
);

-- The thresholds of all destinations, once somebody has set them.
CREATE TABLE alert_policy (
    single boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    policy text    NOT NULL -- JSON
);

-- What has been told of destinations, so that it is told once.
CREATE TABLE alert_states (
    destination_id uuid   NOT NULL PRIMARY KEY,
    version        bigint NOT NULL, -- rises with every change
    told           text   NOT NULL  -- JSON
);

-- Append-only, a partition a day by the time in the id: retention drops whole days. There is no default partition, because
-- one makes it impossible to detach another without blocking every writer; make_partitions keeps the next days ready, and a
-- writer whose day is missing makes it first.
CREATE TABLE events (
    id              uuid    NOT NULL PRIMARY KEY,
    created_at      bigint  NOT NULL,
    data_offset     integer NOT NULL,
    tenant          text    NOT NULL,
    event_type      text    NOT NULL,
    idempotency_key text,
    body            bytea   NOT NULL,
    deliver_at      bigint, -- as the producer named it
    expires_at      bigint,
    coalesce_key    text,
    ordering_key    text,
    traceparent     bytea CHECK (length(traceparent) = 25) -- trace id, span id, flags
) PARTITION BY RANGE (id);
-- No index by tenant or type: each would cost every ingest as much as the event itself. Lists filtered by them walk the ids
-- backwards; `from` and `to` bound the walk.

-- Apart from the events, because a unique key of a partitioned table holds within a partition only.
CREATE TABLE idempotency_keys (
    tenant          text    NOT NULL COLLATE "C",
    idempotency_key text    NOT NULL COLLATE "C",
    event_id        uuid    NOT NULL,
    deliveries      integer NOT NULL, -- how many the event had: part of the answer to who repeats it
    PRIMARY KEY (tenant, idempotency_key)
);

-- The processes that make claims. Each raises its beat; whose beat stands still is declared dead, and its row deleted.
CREATE TABLE processes (
    id   integer NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    beat bigint  NOT NULL
) WITH (fillfactor = 50);

-- The hot table: narrow, not partitioned. States are small integers, because they are compared in every index predicate:
--   0 pending, 1 delivering, 2 retrying, 3 delivered, 4 failed, 5 dead, 6 cancelled, 7 superseded, 8 expired.
-- Every step of a delivery changes its state and with it the partial index it is in, so no update is heap-only, and each
-- index that holds a row whatever its state costs every step an entry: there are two of those, with room in their leaves for the
-- entries to come. The deliveries of an event
-- need none, because their ids begin with the time in the event's id and so stand next to each other; that there is one
-- for each destination follows from the event being stored once.
CREATE TABLE deliveries (
    id               uuid     NOT NULL PRIMARY KEY WITH (fillfactor = 40),
    event_id         uuid     NOT NULL,
    destination_id   uuid     NOT NULL,
    -- When it is due. Kept while it is claimed, so that a claim given back is due as before.
    next_attempt_at  bigint   NOT NULL,
    -- Counts the claims; a write that settles one names it.
    claim_epoch      bigint   NOT NULL DEFAULT 0,
    claim_expires_at bigint,
    created_at       bigint   NOT NULL, -- of the event
    updated_at       bigint   NOT NULL,
    attempts         integer  NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    state            smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 8),
    -- Sent again by a replay: live deliveries are claimed apart from it.
    is_replay        boolean  NOT NULL DEFAULT false,
    -- Of the event, where there is one: NULLs take no room and are in no index.
    deliver_at       bigint, -- when it lay ahead
    expires_at       bigint,
    coalesce_key     text COLLATE "C", -- the event's type, a space, and its key
    replaced         boolean, -- while it was under way a newer one of its key came, so it does not wait again
    -- Of the event, where its destination keeps an order. Those of one key that have not ended are a line, in the order of `line`.
    -- Who is not the first of it is `pending` and due at the end of time (9223372036854775807), until its turn has come.
    ordering_key     text COLLATE "C",
    line             bigint,
    -- Of a delivery that was sent again.
    replay_id        uuid, -- the last replay that took it
    attempts_before  integer, -- how many of its attempts were made before that
    state_before     smallint, -- what it was before, and is again should the replay be cancelled while it waits
    -- While it is claimed, by a process that had registered: which. In no index, since every delivery would pay for it.
    claimed_by       integer CHECK (claimed_by IS NULL OR state = 1),
    CHECK ((state = 1) = (claim_expires_at IS NOT NULL))
) WITH (
    -- Room for the next version of a row on its own page. Dead versions are many and short-lived: a vacuum after each
    -- hundredth keeps the indexes small, and must not sleep while it falls behind.
    fillfactor = 75,
    autovacuum_vacuum_scale_factor = 0.01,
    -- A claim begins at the head of the due index and steps over the entries that earlier claims left. By default a vacuum leaves the
    -- indexes alone when few pages of the table have dead rows.
    vacuum_index_cleanup = on,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
-- Only what waits: of each destination the live deliveries, then those of replays, the oldest due first. What is included makes
-- it cover the counts.
CREATE INDEX deliveries_due ON deliveries (destination_id, is_replay, next_attempt_at, id) INCLUDE (created_at, state)
    WHERE state IN (0, 2);
-- Live claims: as many entries as sends are in flight, so it stays in memory and costs little.
CREATE INDEX deliveries_claimed ON deliveries (destination_id, claim_expires_at) WHERE state = 1;
CREATE INDEX deliveries_of_destination ON deliveries (destination_id, id) WITH (fillfactor = 40);
-- What ended without being delivered: rare, and what people look for.
CREATE INDEX deliveries_ended ON deliveries (state, id) WHERE state > 3;
CREATE INDEX deliveries_ended_of_destination ON deliveries (destination_id, state, id) WHERE state > 3;
-- What waits and will not do so for ever.
CREATE INDEX deliveries_expiring ON deliveries (expires_at) WHERE expires_at IS NOT NULL AND state IN (0, 2);

-- What gives way to a newer one, or would if it were not under way.
CREATE INDEX deliveries_coalescing ON deliveries (destination_id, coalesce_key)
    WHERE coalesce_key IS NOT NULL AND state < 3;

-- Lines: who is due or under way comes first, and then those behind, in their order.
CREATE INDEX deliveries_message_groups ON deliveries (destination_id, ordering_key, next_attempt_at, line)
    WHERE ordering_key IS NOT NULL AND state < 3;

-- Places in lines: a number for each group that has any, taken under the locks of its keys. So they follow each other in the
-- order in which events were stored, whatever clocks made their ids.
CREATE SEQUENCE group_positions;
-- What a replay has taken, by what became of it.
CREATE INDEX deliveries_replayed ON deliveries (replay_id, state) WHERE replay_id IS NOT NULL;

-- Replays. Phases: 0 moving, 1 moved, 2 completed, 3 cancelling, 4 cancelled.
CREATE TABLE replays (
    id         uuid     NOT NULL PRIMARY KEY,
    filter     text     NOT NULL, -- JSON
    phase      smallint NOT NULL CHECK (phase BETWEEN 0 AND 4),
    created_at bigint   NOT NULL,
    ended_at   bigint,
    -- Where the next step goes on: the place of the state in the filter, and the last delivery seen.
    place      integer  NOT NULL DEFAULT 0,
    seen       uuid     NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    moved      bigint   NOT NULL DEFAULT 0,
    total      bigint   NOT NULL, -- as counted at the beginning, until all is moved
    -- As counted at the end; while it is under way they are counted when somebody asks.
    delivered  bigint   NOT NULL DEFAULT 0,
    failed     bigint   NOT NULL DEFAULT 0,
    cancelled  bigint   NOT NULL DEFAULT 0
);
CREATE INDEX replays_open ON replays (id) WHERE phase IN (0, 1, 3);

-- The destinations to which a replay under way has something to send.
CREATE TABLE replay_destinations (
    replay_id      uuid NOT NULL,
    destination_id uuid NOT NULL,
    PRIMARY KEY (replay_id, destination_id)
);

-- Stores events, their keys, and their deliveries, unless what the caller decided by has changed: a destination of one of the
-- tenants has a version above the one seen, or one of the keys is known. Answers whether it stored them. The locks are taken
-- first, so that each statement after them sees what was committed before they were given.
--
-- Deliveries are due at once, with the time of their event as their due time, unless they are delayed. One that is to be sent
-- at once is stored as claimed, until the instant given, by `owner`; nothing is stored when that has been declared dead. Of what most events go without, the array is NULL when it is so for all
-- of them; unnest fills it up.
--
-- What waits gives way to a new delivery of its coalesce key, and what is under way learns of it. Coalesce keys have locks of
-- their own: without them two groups with the same key would not see each other's, and both would wait. Lines have locks for the
-- same reason, and because what ends a head must see who is behind it (advance_message_groups). The lines whose heads may have given way are
-- answered: the next of them comes forward after the commit.
CREATE FUNCTION store_events(
    lock_space integer, locks integer[], key_space integer, key_locks integer[], tenants text[], versions bigint[],
    owner integer, event_ids uuid[], event_tenants text[], event_types text[], event_times bigint[], event_keys text[],
    data_offsets integer[], bodies bytea[], event_starts bigint[], event_ends bigint[], coalesce_keys text[],
    ordering_keys text[], traceparents bytea[], delivery_counts integer[],
    delivery_ids uuid[], delivery_events uuid[], delivery_destinations uuid[], delivery_times bigint[],
    claimed_until bigint[], delayed_until bigint[], delivery_ends bigint[],
    delivery_keys text[], delivery_superseded boolean[], delivery_message_groups text[], delivery_follows boolean[],
    OUT stored boolean, OUT freed_destinations uuid[], OUT freed_keys text[]
) LANGUAGE plpgsql AS $$
DECLARE
    one_lock    integer;
    first_place bigint;
    keyed       boolean := array_length(array_remove(event_keys, NULL), 1) > 0;
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
    -- Apart, because to begin the query costs something for each row even if it is not needed.
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
    IF delivery_keys IS NOT NULL THEN
        -- Locked in the order in which claims lock them, so that neither waits for the other in a circle.
        WITH older AS MATERIALIZED (
            SELECT d.id, r.created_at
            FROM unnest(delivery_destinations, delivery_keys, delivery_superseded, delivery_times)
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
    IF delivery_message_groups IS NOT NULL THEN
        first_place := nextval('group_positions') * 65536;
    END IF;
    INSERT INTO deliveries (id, event_id, destination_id, next_attempt_at, created_at, updated_at,
        state, claim_epoch, claim_expires_at, claimed_by, deliver_at, expires_at,
        coalesce_key, ordering_key, line)
    SELECT r.id, r.event_id, r.destination_id,
        -- Asked for in a line only. As a value and not by EXISTS, which could be planned as a look at all lines at once.
        CASE WHEN r.ordering_key IS NOT NULL AND (r.follows OR (
            SELECT true FROM deliveries d WHERE d.destination_id = r.destination_id AND d.ordering_key = r.ordering_key
                AND d.ordering_key IS NOT NULL AND d.state < 3 LIMIT 1
        )) THEN 9223372036854775807 ELSE coalesce(r.deliver_at, r.created_at) END,
        r.created_at, r.created_at,
        CASE WHEN r.superseded THEN 7 ELSE (r.claimed_until IS NOT NULL)::integer END,
        (r.claimed_until IS NOT NULL)::integer, r.claimed_until,
        CASE WHEN r.claimed_until IS NOT NULL THEN owner END, r.deliver_at, r.expires_at, r.coalesce_key,
        r.ordering_key, CASE WHEN r.ordering_key IS NOT NULL THEN first_place + r.place END
    FROM unnest(delivery_ids, delivery_events, delivery_destinations, delivery_times, claimed_until, delayed_until,
            delivery_ends, delivery_keys, delivery_superseded, delivery_message_groups, delivery_follows) WITH ORDINALITY
        AS r (id, event_id, destination_id, created_at, claimed_until, deliver_at, expires_at, coalesce_key, superseded,
            ordering_key, follows, place);
    IF keyed THEN
        INSERT INTO idempotency_keys (event_id, tenant, idempotency_key, deliveries)
        SELECT * FROM unnest(event_ids, event_tenants, event_keys, delivery_counts) AS r (id, tenant, idempotency_key, deliveries)
        WHERE idempotency_key IS NOT NULL ORDER BY tenant, idempotency_key;
    END IF;
    stored := true;
END
$$;

-- Lets the next of each line come forward if that has no head. Called after the commit of what ended one. The locks of the keys are
-- taken first, so that what follows sees every delivery that was stored beside that. Deliveries that are skipped leave their
-- lines before. In its turn a delivery is due as it was stored, or moved by a replay, so that it takes its place among what is
-- live. Answers which lines have a new head, by their places in the arrays, and when it is due.
CREATE FUNCTION advance_message_groups(
    key_space integer, key_locks integer[], destination_ids uuid[], ordering_keys text[], leaving uuid[]
) RETURNS TABLE (line bigint, due bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    one_lock integer;
BEGIN
    FOREACH one_lock IN ARRAY key_locks LOOP
        PERFORM pg_advisory_xact_lock(key_space, one_lock);
    END LOOP;
    IF array_length(leaving, 1) > 0 THEN
        UPDATE deliveries SET ordering_key = NULL
        WHERE id = ANY (leaving) AND ordering_key IS NOT NULL AND state + 0 IN (0, 1, 2);
    END IF;
    RETURN QUERY
    WITH foremost AS MATERIALIZED (
        SELECT r.line, d.id, d.next_attempt_at
        FROM unnest(destination_ids, ordering_keys) WITH ORDINALITY AS r (destination_id, ordering_key, line)
        CROSS JOIN LATERAL (
            SELECT id, next_attempt_at FROM deliveries
            WHERE destination_id = r.destination_id AND ordering_key = r.ordering_key
                AND ordering_key IS NOT NULL AND state < 3
            ORDER BY next_attempt_at, line LIMIT 1
        ) d
    )
    UPDATE deliveries d
    SET next_attempt_at = CASE WHEN d.replay_id IS NULL THEN coalesce(d.deliver_at, d.created_at) ELSE d.updated_at END
    FROM foremost f
    WHERE d.id = f.id AND f.next_attempt_at = 9223372036854775807
        AND d.state + 0 IN (0, 2) AND d.next_attempt_at = 9223372036854775807
    RETURNING f.line, d.next_attempt_at;
END
$$;

-- Append-only, a partition a day by the time in the delivery's id: the attempts of a delivery are on the same day as its
-- event, are found by one look, and are dropped with it. Outcomes: 0 delivered, 1 retryable, 2 rejected, 3 unknown.
CREATE TABLE attempts (
    delivery_id    uuid     NOT NULL,
    id             uuid     NOT NULL,
    destination_id uuid     NOT NULL,
    sent_at        bigint, -- NULL: no connection, so nothing left
    number         integer  NOT NULL,
    duration_ms    bigint   NOT NULL,
    outcome        smallint NOT NULL CHECK (outcome BETWEEN 0 AND 3),
    status_code    integer,
    error          text,
    -- Why there was no usable answer: 0 dns, 1 connect, 2 tls, 3 timeout, 4 broken, 5 forbidden; NULL: there was one, or
    -- nobody knows.
    failure        smallint,
    response_body  bytea, -- UTF-8; not text, which cannot hold the character 0
    PRIMARY KEY (delivery_id, number)
) PARTITION BY RANGE (delivery_id);
CREATE INDEX attempts_of_destination ON attempts (destination_id, sent_at) WHERE sent_at IS NOT NULL;

-- The smallest id made at the beginning of a day, counted since the Unix epoch.
CREATE FUNCTION first_id_of_day(day integer) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT (lpad(to_hex(day::bigint * 86400000), 12, '0') || repeat('0', 20))::uuid
$$;

-- Makes the partitions of some days where they are missing, and answers how many days it made. One process at a time; a
-- table is made by itself and then attached, because that blocks neither readers nor writers of the other days.
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

-- Drops the partitions of a day. Everybody who needs one of the tables waits meanwhile, so it must be quick: when it would have
-- to wait itself, or a delivery of the day has come meanwhile, it fails as "in use".
CREATE FUNCTION drop_partitions(day integer) RETURNS void LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    parent text;
BEGIN
    FOREACH parent IN ARRAY ARRAY['events', 'attempts'] LOOP
        EXECUTE format('DROP TABLE IF EXISTS %I', format('%s_%s', parent, to_char(DATE '1970-01-01' + day, 'YYYYMMDD')));
    END LOOP;
    IF EXISTS (SELECT FROM deliveries WHERE id >= first_id_of_day(day) AND id < first_id_of_day(day + 1)) THEN
        RAISE EXCEPTION 'deliveries of the day are left' USING ERRCODE = 'object_in_use';
    END IF;
END
$$;

-- After the restore of a backup: until when sends may have started that the record does not know of. Empty: never restored.
CREATE TABLE restored (
    single      boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    sends_until bigint  NOT NULL
);

-- Which programs may use this schema: those that know at least the migration with this number (migrations/README.md).
CREATE TABLE schema_marker (
    single         boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    oldest_program integer NOT NULL
);
INSERT INTO schema_marker (oldest_program) VALUES (1);
