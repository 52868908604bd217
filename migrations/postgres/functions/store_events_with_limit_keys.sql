-- The version of store_events that also stores limit keys. The earlier one stays for programs of the version before.
--
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
    delivery_follows boolean[], event_limit_keys text[], delivery_flows uuid[], delivery_limit_keys text[],
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
        deliver_at, expires_at, coalesce_key, ordering_key, traceparent, limit_key)
    SELECT * FROM unnest(event_ids, event_tenants, event_types, event_times, event_keys, data_offsets, bodies,
        event_starts, event_ends, coalesce_keys, ordering_keys, traceparents, event_limit_keys);
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
        coalesce_key, ordering_key, group_position, flow_id, limit_key)
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
        r.ordering_key, CASE WHEN r.ordering_key IS NOT NULL THEN first_position + r.ordinal END,
        r.flow_id, r.limit_key
    FROM unnest(delivery_ids, delivery_events, delivery_destinations, delivery_times, claimed_until, delayed_until,
            delivery_ends, delivery_coalesce_keys, delivery_superseded, delivery_ordering_keys, delivery_follows,
            delivery_flows, delivery_limit_keys)
        WITH ORDINALITY AS r (id, event_id, destination_id, created_at, claimed_until, deliver_at, expires_at, coalesce_key,
            superseded, ordering_key, follows, flow_id, limit_key, ordinal);
    IF keyed THEN
        INSERT INTO idempotency_keys (event_id, tenant, idempotency_key, deliveries)
        SELECT * FROM unnest(event_ids, event_tenants, event_keys, delivery_counts) AS r (id, tenant, idempotency_key, deliveries)
        WHERE idempotency_key IS NOT NULL ORDER BY tenant, idempotency_key;
    END IF;
    stored := true;
END
$$;
