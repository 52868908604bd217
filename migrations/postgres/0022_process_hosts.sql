-- The machine of a process, for people. NULL: a process of an older version.
ALTER TABLE processes ADD COLUMN host text;
