-- The catalogue of event types: what producers may send, and what people read about it.
CREATE TABLE event_types (
    name        text COLLATE "C" NOT NULL PRIMARY KEY,
    version     bigint NOT NULL, -- the number of its last change
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    description text   NOT NULL,
    example     text,            -- JSON
    schema      text             -- JSON Schema
);
-- The number of the last change of the catalogue, by which processes see that their copy is old; and how large it is.
-- A change locks the row.
CREATE TABLE event_type_catalogue (
    single       boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    version      bigint  NOT NULL,
    types        bigint  NOT NULL,
    schema_bytes bigint  NOT NULL
);
INSERT INTO event_type_catalogue VALUES (true, 0, 0, 0);
