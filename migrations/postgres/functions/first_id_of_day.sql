-- The smallest id of a day. Days are counted from the Unix epoch.
CREATE FUNCTION first_id_of_day(day integer) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT (lpad(to_hex(day::bigint * 86400000), 12, '0') || repeat('0', 20))::uuid
$$;
