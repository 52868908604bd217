-- Makes sure that the shard has a generation and its delivery queue, sets its time if the server's clock was set forward,
-- and returns the time.
--
-- KEYS    the shard
-- ARGV    the caller's time; the time to which the shard's is set back, because the server's clock was set forward, or 0;
--         the generation in which the caller found damaged keys, or 0
-- Answer  the generation, the time of the shard, the server's clock, 1 when the time was set back, else 0

local right_time, damaged = number(), number()
-- Whatever is damaged goes with its generation. Another process may have ended that generation already.
if damaged == generation then
  begin_generation(server_run_id())
end

local is_set_back = right_time > 0 and right_time < shard_time
-- The caller itself may be behind, because its machine was suspended. Then the other processes have stated later times.
if is_set_back and heard <= right_time + LATE_CALL then
  set_time(right_time)
  -- Jobs that were scheduled by the wrong time would run too late, so all of them run now. An unneeded run finds
  -- nothing to do.
  for _, id in ipairs(redis.call('ZRANGE', SCHEDULE, now, '+inf', 'BYSCORE')) do
    redis.call('ZADD', SCHEDULE, now, id)
  end
else
  is_set_back = false
end
-- Every process makes this call once a second.
if caller_time > heard then
  redis.call('HSET', GENERATION, 'heard', caller_time)
end
return { generation, shard_time, server_time, is_set_back and 1 or 0 }
