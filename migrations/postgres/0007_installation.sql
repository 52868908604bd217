-- The id of this installation. It is made here, once. Processes leave it in Redis, so that another installation that reaches the same
-- Redis finds it and does not use the keys.
CREATE TABLE installation (
    single boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    id     uuid    NOT NULL
);
INSERT INTO installation (id) VALUES (gen_random_uuid());
