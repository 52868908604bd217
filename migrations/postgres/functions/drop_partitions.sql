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
