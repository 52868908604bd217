-- When an API key was last used. Each process writes a key at most once a minute, and no request waits for it. The table
-- is apart from the keys, so a use never changes what a request is judged by.
CREATE TABLE api_key_uses (
    key_id BLOB    NOT NULL PRIMARY KEY CHECK (length(key_id) = 16),
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
