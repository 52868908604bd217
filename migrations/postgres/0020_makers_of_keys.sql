-- Who made an API key, in a table of its own: the statements of programs of the previous version insert a key with all
-- columns of its table. Keys that such programs make have no row here.
CREATE TABLE api_key_makers (
    key_id   uuid NOT NULL PRIMARY KEY,
    name     text NOT NULL, -- as in the activity log: the name of a key, or of those without one
    maker_id uuid -- the key that made this one
);
