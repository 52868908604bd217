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
