-- Which events a destination takes by their data; NULL: all of its types. JSON, see docs/guides/filters.md.
ALTER TABLE destinations ADD COLUMN event_filter TEXT;
-- How many destinations did not get the event because of their filters; NULL: none.
ALTER TABLE events ADD COLUMN filtered INTEGER;
