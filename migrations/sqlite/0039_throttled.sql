-- How many attempts the receiver answered with 429, among those that failed. A process of an earlier version counts none.
ALTER TABLE traffic_changes ADD COLUMN throttled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE traffic ADD COLUMN throttled INTEGER NOT NULL DEFAULT 0;
