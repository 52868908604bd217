-- Makes sure the shard has a generation and its queue, and tells the server's time.
--
-- KEYS    the shard
-- ARGV    none
-- Answer  the generation, the time

return { generation, now }
