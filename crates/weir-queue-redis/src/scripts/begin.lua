-- Makes sure that the shard has a generation and its delivery queue, and returns the time.
--
-- KEYS    the shard
-- ARGV    the caller's time; 1 when the server's clock was set forward and the caller's time is right, else 0; the
--         generation in which the caller found damaged keys, else 0
-- Answer  the generation, the time

local is_ahead, damaged = number() == 1, number()
-- Whatever is damaged goes with its generation. Another process may have ended that generation already.
if damaged == generation then
  begin_generation(server_run_id())
end

if is_ahead and caller_time > 0 and now > caller_time then
  set_time(caller_time)
  -- Jobs that were scheduled by the wrong time would run too late, so all of them run now. An unneeded run finds
  -- nothing to do.
  for _, id in ipairs(redis.call('ZRANGE', SCHEDULE, now, '+inf', 'BYSCORE')) do
    redis.call('ZADD', SCHEDULE, now, id)
  end
end
return { generation, now }
