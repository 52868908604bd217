-- A pace that finds itself below the limits (docs/guides/adaptive.md); NULL: none. JSON: {min_per_s, max_per_s, latency}
ALTER TABLE destinations ADD COLUMN adaptive text;
-- A copy of each pace, from which it goes on after the queue has lost it.
CREATE TABLE paces (
    destination_id uuid NOT NULL PRIMARY KEY,
    saved_at bigint NOT NULL,
    state text NOT NULL -- JSON of the whole state, less than 2 KB
);
-- The changes of paces by a tenth or more. Kept for a week.
CREATE TABLE pace_changes (
    destination_id uuid NOT NULL,
    at bigint NOT NULL,
    change text NOT NULL, -- JSON: {at, from_per_s, to_per_s, reason, detail}
    PRIMARY KEY (destination_id, at)
);
CREATE INDEX pace_changes_by_time ON pace_changes (at);
