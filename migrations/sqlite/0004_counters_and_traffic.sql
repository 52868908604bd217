-- The number of deliveries in each state, and the traffic, of each destination; docs/decisions/0038 says why so. A commit
-- appends its changes to count_changes and traffic_changes, one row for each destination that it touched, in the same
-- transaction as the deliveries. Every second these rows are folded into the totals and deleted. Every read adds the
-- rows that are not folded yet, so no read depends on the fold.

CREATE TABLE destination_totals (
    destination_id BLOB NOT NULL PRIMARY KEY,
    pending        INTEGER NOT NULL DEFAULT 0,
    delivering     INTEGER NOT NULL DEFAULT 0,
    retrying       INTEGER NOT NULL DEFAULT 0,
    delivered      INTEGER NOT NULL DEFAULT 0,
    failed         INTEGER NOT NULL DEFAULT 0,
    dead           INTEGER NOT NULL DEFAULT 0,
    cancelled      INTEGER NOT NULL DEFAULT 0,
    superseded     INTEGER NOT NULL DEFAULT 0,
    expired        INTEGER NOT NULL DEFAULT 0,
    last_success_at INTEGER -- when the last successful attempt was judged
) STRICT, WITHOUT ROWID;

-- By how many deliveries each state grew or shrank in one commit. `at` is the beginning of a bucket of 10 s.
CREATE TABLE count_changes (
    destination_id BLOB    NOT NULL,
    at             INTEGER NOT NULL,
    pending        INTEGER NOT NULL,
    delivering     INTEGER NOT NULL,
    retrying       INTEGER NOT NULL,
    delivered      INTEGER NOT NULL,
    failed         INTEGER NOT NULL,
    dead           INTEGER NOT NULL,
    cancelled      INTEGER NOT NULL,
    superseded     INTEGER NOT NULL,
    expired        INTEGER NOT NULL,
    arrivals       INTEGER NOT NULL -- new deliveries
) STRICT;

-- The attempts of one commit, by the bucket of 10 s in which they started. An attempt without a connection started when
-- it was judged, and is no send.
CREATE TABLE traffic_changes (
    destination_id  BLOB    NOT NULL,
    at              INTEGER NOT NULL,
    sends           INTEGER NOT NULL,
    delivered       INTEGER NOT NULL,
    failed          INTEGER NOT NULL, -- attempts that did not succeed
    dead            INTEGER NOT NULL, -- deliveries that became dead or failed
    last_success_at INTEGER,
    latencies       TEXT    NOT NULL, -- JSON: {bucket: sends}
    attempts        TEXT    NOT NULL  -- JSON: {attempts that a delivered delivery needed: deliveries}
) STRICT;

-- Traffic by bucket. A row is for 10 s; after a day the rows of a minute are added up in the row of its first 10 s, and
-- after 14 days those of an hour likewise. The key begins with the time, so that the rows that are written together are
-- next to each other.
CREATE TABLE traffic (
    at             INTEGER NOT NULL,
    destination_id BLOB    NOT NULL,
    sends          INTEGER NOT NULL,
    delivered      INTEGER NOT NULL,
    failed         INTEGER NOT NULL,
    dead           INTEGER NOT NULL,
    arrivals       INTEGER NOT NULL,
    backlog_change INTEGER NOT NULL, -- of the deliveries that wait
    PRIMARY KEY (at, destination_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX traffic_of_destination ON traffic (destination_id, at);

-- How many sends had a latency (kind 0, value: the bucket of the latency), and how many delivered deliveries needed a
-- number of attempts (kind 1, value: the number). By minute, after a day by hour.
CREATE TABLE traffic_histograms (
    at             INTEGER NOT NULL,
    destination_id BLOB    NOT NULL,
    kind           INTEGER NOT NULL CHECK (kind IN (0, 1)),
    value          INTEGER NOT NULL,
    n              INTEGER NOT NULL,
    PRIMARY KEY (at, destination_id, kind, value)
) STRICT, WITHOUT ROWID;
CREATE INDEX traffic_histograms_of_destination ON traffic_histograms (destination_id, at);

-- How far rows were added up to minutes and to hours.
CREATE TABLE traffic_rolled_up (
    single  INTEGER NOT NULL PRIMARY KEY CHECK (single = 1),
    minutes INTEGER NOT NULL, -- rows before this instant are of whole minutes
    hours   INTEGER NOT NULL,
    histograms INTEGER NOT NULL -- those of histograms: of whole hours
) STRICT;
INSERT INTO traffic_rolled_up (single, minutes, hours, histograms) VALUES (1, 0, 0, 0);

-- The oldest retry of a destination. The oldest pending delivery is first in deliveries_due.
CREATE INDEX deliveries_retrying ON deliveries (destination_id, id) WHERE state = 2;

-- What is already there.
INSERT INTO destination_totals (destination_id, pending, delivering, retrying, delivered, failed, dead, cancelled,
    superseded, expired)
SELECT destination_id, sum(state = 0), sum(state = 1), sum(state = 2), sum(state = 3), sum(state = 4), sum(state = 5),
    sum(state = 6), sum(state = 7), sum(state = 8)
FROM deliveries GROUP BY destination_id;

-- An older program would change deliveries without counting them.
UPDATE schema_marker SET oldest_program = 4;
