-- What a process says of itself, for people. NULL: a process of an older version.
ALTER TABLE processes
    ADD COLUMN role       text,
    ADD COLUMN version    text,
    ADD COLUMN started_at bigint;
