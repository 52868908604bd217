-- The catalogue of event types: what producers may send, and what people read about it.
CREATE TABLE event_types (
    name        TEXT    NOT NULL PRIMARY KEY,
    version     INTEGER NOT NULL, -- the number of its last change
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    description TEXT    NOT NULL,
    example     TEXT,             -- JSON
    schema      TEXT              -- JSON Schema
) STRICT;
-- The number of the last change of the catalogue, by which processes see that their copy is old; and how large it is.
CREATE TABLE event_type_catalogue (
    single       INTEGER NOT NULL PRIMARY KEY CHECK (single = 1),
    version      INTEGER NOT NULL,
    types        INTEGER NOT NULL,
    schema_bytes INTEGER NOT NULL
) STRICT;
INSERT INTO event_type_catalogue VALUES (1, 0, 0, 0);
