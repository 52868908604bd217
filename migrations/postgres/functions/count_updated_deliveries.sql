-- The function of the trigger deliveries_updated, in place of the first version in count_deliveries.sql. It appends to
-- count_changes one row for each destination in which a state has more or fewer deliveries than before the statement.
--
-- A statement may update one delivery of each of many destinations, so the cost of a destination counts. The rows are
-- grouped once, and the sums are of `integer`. The first version grouped them twice, and its sums of `bigint` were
-- `numeric`.
CREATE OR REPLACE FUNCTION count_updated_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO count_changes (destination_id, at, pending, delivering, retrying, delivered, failed, dead, cancelled,
        superseded, expired)
    SELECT * FROM (
        SELECT destination_id, max(at) - max(at) % 10000000000,
            nullif(sum(n) FILTER (WHERE state = 0), 0) AS pending,
            nullif(sum(n) FILTER (WHERE state = 1), 0) AS delivering,
            nullif(sum(n) FILTER (WHERE state = 2), 0) AS retrying,
            nullif(sum(n) FILTER (WHERE state = 3), 0) AS delivered,
            nullif(sum(n) FILTER (WHERE state = 4), 0) AS failed,
            nullif(sum(n) FILTER (WHERE state = 5), 0) AS dead,
            nullif(sum(n) FILTER (WHERE state = 6), 0) AS cancelled,
            nullif(sum(n) FILTER (WHERE state = 7), 0) AS superseded,
            nullif(sum(n) FILTER (WHERE state = 8), 0) AS expired
        FROM (
            SELECT destination_id, state, 1 AS n, updated_at AS at FROM new_rows
            UNION ALL
            SELECT destination_id, state, -1, NULL FROM old_rows
        ) row_changes GROUP BY destination_id
    ) changes
    -- A statement may leave all states as they were, for example if it only moves a due time.
    WHERE num_nonnulls(pending, delivering, retrying, delivered, failed, dead, cancelled, superseded, expired) > 0;
    RETURN NULL;
END
$$;
