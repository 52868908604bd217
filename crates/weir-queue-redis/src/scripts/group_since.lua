-- When the data of a group began. A slot that was granted in earlier data is not known to these.
--
-- KEYS    the shard
-- ARGV    the caller's time; the group
-- Answer  the generation; the time, or 0 when the group has no cursors

local group = group_named(text())
return { generation, group.cursors and group.known_since or 0 }
