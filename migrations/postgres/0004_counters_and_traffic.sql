-- The number of deliveries in each state, and the traffic, of each destination; docs/decisions/0038 says why so. Each
-- statement appends its changes to count_changes and traffic_changes, one row for each destination that it touched, so
-- no two processes wait for one row. Every second these rows are folded into the totals and deleted. Every read adds the
-- rows that are not folded yet, so no read depends on the fold.

CREATE TABLE destination_totals (
    destination_id uuid   NOT NULL PRIMARY KEY,
    pending        bigint NOT NULL DEFAULT 0,
    delivering     bigint NOT NULL DEFAULT 0,
    retrying       bigint NOT NULL DEFAULT 0,
    delivered      bigint NOT NULL DEFAULT 0,
    failed         bigint NOT NULL DEFAULT 0,
    dead           bigint NOT NULL DEFAULT 0,
    cancelled      bigint NOT NULL DEFAULT 0,
    superseded     bigint NOT NULL DEFAULT 0,
    expired        bigint NOT NULL DEFAULT 0,
    last_success_at bigint -- when the last successful attempt was judged
) WITH (fillfactor = 50);

-- By how many deliveries each state grew or shrank in one statement; NULL: not at all. `at` is the beginning of a bucket
-- of 10 s. Without an index, because rows are only appended and taken. Vacuum runs often, so that the table stays short.
CREATE TABLE count_changes (
    destination_id uuid   NOT NULL,
    at             bigint NOT NULL,
    pending        integer,
    delivering     integer,
    retrying       integer,
    delivered      integer,
    failed         integer,
    dead           integer,
    cancelled      integer,
    superseded     integer,
    expired        integer,
    arrivals       integer -- new deliveries
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- The attempts of one statement, by the bucket of 10 s in which they started. An attempt without a connection started
-- when it was judged, and is no send.
CREATE TABLE traffic_changes (
    destination_id  uuid     NOT NULL,
    at              bigint   NOT NULL,
    sends           integer  NOT NULL,
    delivered       integer  NOT NULL,
    failed          integer  NOT NULL, -- attempts that did not succeed
    dead            integer  NOT NULL, -- deliveries that became dead or failed
    last_success_at bigint,
    latencies       smallint[], -- the bucket of the latency of each send
    attempts        integer[] -- the attempts that each delivered delivery needed
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- Traffic by bucket. A row is for 10 s; after a day the rows of a minute are added up in the row of its first 10 s, and
-- after 14 days those of an hour likewise.
CREATE TABLE traffic (
    at             bigint NOT NULL,
    destination_id uuid   NOT NULL,
    sends          bigint NOT NULL,
    delivered      bigint NOT NULL,
    failed         bigint NOT NULL,
    dead           bigint NOT NULL,
    arrivals       bigint NOT NULL,
    backlog_change bigint NOT NULL, -- of the deliveries that wait
    PRIMARY KEY (at, destination_id)
) WITH (fillfactor = 70);
CREATE INDEX traffic_of_destination ON traffic (destination_id, at);

-- How many sends had a latency (kind 0, value: the bucket of the latency), and how many delivered deliveries needed a
-- number of attempts (kind 1, value: the number). By minute, after a day by hour.
CREATE TABLE traffic_histograms (
    at             bigint   NOT NULL,
    destination_id uuid     NOT NULL,
    kind           smallint NOT NULL CHECK (kind IN (0, 1)),
    value          integer  NOT NULL,
    n              bigint   NOT NULL,
    PRIMARY KEY (at, destination_id, kind, value)
) WITH (fillfactor = 70);
CREATE INDEX traffic_histograms_of_destination ON traffic_histograms (destination_id, at);

-- How far rows were added up to minutes and to hours.
CREATE TABLE traffic_rolled_up (
    single  boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    minutes bigint  NOT NULL, -- rows before this instant are of whole minutes
    hours   bigint  NOT NULL,
    histograms bigint NOT NULL -- those of histograms: of whole hours
);
INSERT INTO traffic_rolled_up (minutes, hours, histograms) VALUES (0, 0, 0);

-- The triggers count for every statement, also for those of a program of the previous version. Statements that change
-- deliveries wait until this migration commits, because it counts what is already there.
LOCK TABLE deliveries IN SHARE ROW EXCLUSIVE MODE;

-- The oldest retry of a destination. The oldest pending delivery is first in deliveries_due. The condition is written so
-- that only the statement that looks for the oldest retry matches it, and no other statement changes its plan.
CREATE INDEX deliveries_retrying ON deliveries (destination_id, id) WHERE state - 2 = 0;

INSERT INTO destination_totals (destination_id, pending, delivering, retrying, delivered, failed, dead, cancelled,
    superseded, expired)
SELECT destination_id, count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1),
    count(*) FILTER (WHERE state = 2), count(*) FILTER (WHERE state = 3), count(*) FILTER (WHERE state = 4),
    count(*) FILTER (WHERE state = 5), count(*) FILTER (WHERE state = 6), count(*) FILTER (WHERE state = 7),
    count(*) FILTER (WHERE state = 8)
FROM deliveries GROUP BY destination_id;
