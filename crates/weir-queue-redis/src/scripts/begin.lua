-- Makes sure that the shard has a generation and its delivery queue, and returns the time.
--
-- KEYS    the shard
-- ARGV    the caller's time; 1 when the server's clock was set forward and the caller's time is right, else 0
-- Answer  the generation, the time

if number() == 1 and caller_time > 0 and now > caller_time then
  set_time(caller_time)
  -- Jobs that were scheduled by the wrong time would run too late, so all of them run now. An unneeded run finds
  -- nothing to do.
  for _, id in ipairs(redis.call('ZRANGE', SCHEDULE, now, '+inf', 'BYSCORE')) do
    redis.call('ZADD', SCHEDULE, now, id)
  end
end
return { generation, now }
