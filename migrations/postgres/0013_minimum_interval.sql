-- The least time between two sends of a destination, beside its limits; NULL: none. A limit says its margin in its JSON,
-- as `margin_ms`; without it, the margin is 0.
ALTER TABLE destinations ADD COLUMN min_interval_ms bigint CHECK (min_interval_ms BETWEEN 1 AND 60000);
ALTER TABLE limit_changes ADD COLUMN min_interval_ms bigint CHECK (min_interval_ms BETWEEN 1 AND 60000);
