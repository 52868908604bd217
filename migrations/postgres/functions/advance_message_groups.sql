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
