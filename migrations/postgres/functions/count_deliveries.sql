-- Appends to count_changes what one statement has changed in deliveries. Triggers of the statement call it, so no
-- statement can forget to count, and one call counts all rows of a statement.
--
-- A delivery that was inserted is in new_rows, one that was deleted in old_rows, and one that was updated in both. The
-- time of an update is that of its latest row: the rows of one statement are milliseconds apart.
CREATE FUNCTION count_inserted_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A new delivery is pending, claimed by the fast path, or superseded by a later event of the same call.
    INSERT INTO count_changes (destination_id, at, pending, delivering, retrying, delivered, failed, dead, cancelled,
        superseded, expired, arrivals)
    SELECT destination_id, max(created_at) - max(created_at) % 10000000000,
        nullif(count(*) FILTER (WHERE state = 0), 0), nullif(count(*) FILTER (WHERE state = 1), 0),
        nullif(count(*) FILTER (WHERE state = 2), 0), nullif(count(*) FILTER (WHERE state = 3), 0),
        nullif(count(*) FILTER (WHERE state = 4), 0), nullif(count(*) FILTER (WHERE state = 5), 0),
        nullif(count(*) FILTER (WHERE state = 6), 0), nullif(count(*) FILTER (WHERE state = 7), 0),
        nullif(count(*) FILTER (WHERE state = 8), 0), count(*)
    FROM new_rows GROUP BY destination_id;
    RETURN NULL;
END
$$;

CREATE FUNCTION count_updated_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO count_changes (destination_id, at, pending, delivering, retrying, delivered, failed, dead, cancelled,
        superseded, expired)
    SELECT destination_id, max(at) - max(at) % 10000000000,
        sum(n) FILTER (WHERE state = 0), sum(n) FILTER (WHERE state = 1), sum(n) FILTER (WHERE state = 2),
        sum(n) FILTER (WHERE state = 3), sum(n) FILTER (WHERE state = 4), sum(n) FILTER (WHERE state = 5),
        sum(n) FILTER (WHERE state = 6), sum(n) FILTER (WHERE state = 7), sum(n) FILTER (WHERE state = 8)
    FROM (
        -- States with the same number before and after are left out: most statements change two.
        SELECT destination_id, state, sum(n) AS n, max(at) AS at FROM (
            SELECT destination_id, state, 1 AS n, updated_at AS at FROM new_rows
            UNION ALL
            SELECT destination_id, state, -1, NULL FROM old_rows
        ) row_changes GROUP BY destination_id, state HAVING sum(n) <> 0
    ) changes GROUP BY destination_id;
    RETURN NULL;
END
$$;

CREATE FUNCTION count_deleted_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO count_changes (destination_id, at, pending, delivering, retrying, delivered, failed, dead, cancelled,
        superseded, expired)
    SELECT destination_id, max(updated_at) - max(updated_at) % 10000000000,
        -nullif(count(*) FILTER (WHERE state = 0), 0), -nullif(count(*) FILTER (WHERE state = 1), 0),
        -nullif(count(*) FILTER (WHERE state = 2), 0), -nullif(count(*) FILTER (WHERE state = 3), 0),
        -nullif(count(*) FILTER (WHERE state = 4), 0), -nullif(count(*) FILTER (WHERE state = 5), 0),
        -nullif(count(*) FILTER (WHERE state = 6), 0), -nullif(count(*) FILTER (WHERE state = 7), 0),
        -nullif(count(*) FILTER (WHERE state = 8), 0)
    FROM old_rows GROUP BY destination_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER deliveries_inserted AFTER INSERT ON deliveries REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_inserted_deliveries();
CREATE TRIGGER deliveries_updated AFTER UPDATE ON deliveries REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_updated_deliveries();
CREATE TRIGGER deliveries_deleted AFTER DELETE ON deliveries REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_deleted_deliveries();
