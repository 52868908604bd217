-- The secret that signs the sessions of browsers, made by the first process that needs it. It has a table of its own, so
-- whoever reads the digests of keys cannot make a session. Without the row the next process makes another secret, and
-- every session has ended.
CREATE TABLE session_secret (
    single bool  NOT NULL PRIMARY KEY CHECK (single),
    secret bytea NOT NULL CHECK (length(secret) = 32)
);
