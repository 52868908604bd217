-- The head of a body (id, type and time of the event) follows from other columns, and is not stored with the bodies of
-- events that were created at `stored_before` or later. Programs of the version before cannot read such bodies. So in a
-- database that has events the heads are stored for eight days more, while those programs may run or start again.
CREATE TABLE body_heads (
    single        boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    stored_before bigint  NOT NULL
);
INSERT INTO body_heads (stored_before)
SELECT CASE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'events'::regclass)
    THEN (extract(epoch FROM clock_timestamp() + interval '8 days') * 1000000000)::bigint ELSE 0 END;
