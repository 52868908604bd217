-- By how many microseconds the clock of the process's machine is ahead of that of Redis; negative: behind. NULL: a process
-- of an older version. It is written with the beat.
ALTER TABLE processes ADD COLUMN clock_ahead_us bigint;
