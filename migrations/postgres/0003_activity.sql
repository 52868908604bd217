-- Who changed what, and when. A row is written in the transaction of its change, and kept for a year.
CREATE TABLE activity (
    id             uuid   NOT NULL PRIMARY KEY,
    destination_id uuid, -- that it is about, also if the subject is a delivery or a replay
    key_id         uuid, -- of the actor, if it has a stored key
    at             bigint NOT NULL,
    action         text   NOT NULL,
    actor          text   NOT NULL,
    tenant         text,
    subject_kind   text,
    subject_id     text, -- as people see it
    subject_name   text, -- at that time
    before         text, -- JSON: the changed fields, without secrets
    after          text, -- JSON
    request_id     text
);
CREATE INDEX activity_of_destination ON activity (destination_id, id) WHERE destination_id IS NOT NULL;
CREATE INDEX activity_of_actor ON activity (actor, id);
CREATE INDEX activity_of_tenant ON activity (tenant, id) WHERE tenant IS NOT NULL;

-- The first answers to requests with an `Idempotency-Key`, kept for a day.
CREATE TABLE keyed_answers (
    key     bytea  NOT NULL PRIMARY KEY CHECK (length(key) = 32), -- digest of the caller and its key
    request bytea  NOT NULL CHECK (length(request) = 32), -- digest
    answer  text   NOT NULL, -- JSON, without secrets
    at      bigint NOT NULL
);
CREATE INDEX keyed_answers_by_age ON keyed_answers (at);

-- Destinations by name. Names are not unique.
CREATE INDEX destinations_by_name ON destinations (tenant, name) WHERE deleted_at IS NULL;
