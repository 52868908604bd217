-- Makes sure that the shard has a generation and its delivery queue, sets its time back if the server's clock was set
-- forward, and returns the time.
--
-- KEYS    the shard
-- ARGV    the caller's time; the bounds of the time to which the shard is set back, or 0 and 0; the generation in which
--         the caller found damaged keys, or 0
-- Answer  the generation, the time of the shard, the server's clock, the latest time that a process had stated, or 0

local right_time, latest, damaged = number(), number(), number()
-- Whatever is damaged goes with its generation. Another process may have ended that generation already.
if damaged == generation then
  begin_generation(server_run_id())
end

-- The caller itself may be behind, because its machine was suspended. Then the shard keeps its time.
if right_time > 0 and right_time < shard_time and heard <= latest + CLOCK_TOLERANCE then
  set_time(right_time)
  -- Jobs that were scheduled by the wrong time would run too late, so all of them run now. An unneeded run finds
  -- nothing to do.
  for _, id in ipairs(redis.call('ZRANGE', SCHEDULE, now, '+inf', 'BYSCORE')) do
    redis.call('ZADD', SCHEDULE, now, id)
  end
end
-- Every process makes this call once a second.
if caller_time > heard then
  redis.call('HSET', GENERATION, 'heard', caller_time)
end
return { generation, shard_time, server_time, heard }
