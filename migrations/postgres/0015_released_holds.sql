-- The last release of a destination's hold. Holds that sends from before it asked for do not count. Programs of the previous
-- version do not know of it: a hold that they record may extend to before the release.
ALTER TABLE destinations ADD COLUMN released_at bigint;
