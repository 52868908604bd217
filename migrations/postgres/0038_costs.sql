-- How much of a limit in costs a send takes (docs/guides/limits.md#points); NULL: 1.
ALTER TABLE events ADD COLUMN cost integer;
-- That of its event, so that claims and audits read no event.
ALTER TABLE deliveries ADD COLUMN cost integer;
