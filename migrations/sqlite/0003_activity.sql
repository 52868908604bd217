-- Who changed what, and when. A row is written in the transaction of its change, and kept for a year.
CREATE TABLE activity (
    id             BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    destination_id BLOB, -- that it is about, also if the subject is a delivery or a replay
    key_id         BLOB, -- of the actor, if it has a stored key
    at             INTEGER NOT NULL,
    action         TEXT    NOT NULL,
    actor          TEXT    NOT NULL,
    tenant         TEXT,
    subject_kind   TEXT,
    subject_id     TEXT, -- as people see it
    subject_name   TEXT, -- at that time
    before         TEXT, -- JSON: the changed fields, without secrets
    after          TEXT, -- JSON
    request_id     TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX activity_of_destination ON activity (destination_id, id) WHERE destination_id IS NOT NULL;
CREATE INDEX activity_of_actor ON activity (actor, id);
CREATE INDEX activity_of_tenant ON activity (tenant, id) WHERE tenant IS NOT NULL;

-- The first answers to requests with an `Idempotency-Key`, kept for a day.
CREATE TABLE keyed_answers (
    key     BLOB    NOT NULL PRIMARY KEY CHECK (length(key) = 32), -- digest of the caller and its key
    request BLOB    NOT NULL CHECK (length(request) = 32), -- digest
    answer  TEXT    NOT NULL, -- JSON, without secrets
    at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX keyed_answers_by_age ON keyed_answers (at);

-- Destinations by name. Names are not unique.
CREATE INDEX destinations_by_name ON destinations (tenant, name) WHERE deleted_at IS NULL;
