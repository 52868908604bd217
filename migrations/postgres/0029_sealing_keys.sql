-- The keys that may have sealed rows, by their ids. A process adds its key before it seals anything, and a rotation removes
-- the keys that no row needs any more. The keys themselves are not stored.
CREATE TABLE sealing_keys (
    key_id text NOT NULL PRIMARY KEY
);
