-- Makes sure that the shard has a generation and its delivery queue, corrects or confirms its time, and returns the time.
--
-- KEYS    the shard
-- ARGV    the shift that the caller found and the one that is right, or 0 and 0; the time of the shard that the caller
--         confirms, or 0; the confirmation after which it is the next, or -1; the generation in which the caller found
--         damaged keys, or 0
-- Answer  the generation, the time of the shard, the server's clock, the latest time that a process had stated, or 0,
--         the latest time that a process has confirmed, or 0

local found_shift, right_shift = number(), number()
local confirms, after, damaged = number(), number(), number()
-- Whatever is damaged goes with its generation. Another process may have ended that generation already.
if damaged == generation then
  begin_generation(server_run_id())
end

-- Another process may have corrected the shift already. A caller that is behind what others have stated is wrong itself:
-- its machine was suspended.
if found_shift ~= right_shift and shift == found_shift and server_time + right_shift >= heard - CLOCK_TOLERANCE then
  set_time(server_time + right_shift)
  -- Jobs that were scheduled by a later time would run too late, so all of them run now. An unneeded run finds nothing
  -- to do.
  if right_shift < found_shift then
    for _, id in ipairs(redis.call('ZRANGE', SCHEDULE, now, '+inf', 'BYSCORE')) do
      redis.call('ZADD', SCHEDULE, now, id)
    end
  end
end
local confirmed = integer_in(redis.call('HGET', GENERATION, 'confirmed'), 1, LATEST) or 0
if confirms > 0 and (after < 0 or after == confirmed) then
  -- A confirmed time has a shift, also if it is 0: otherwise the first call that states a time would set it.
  redis.call('HSET', GENERATION, 'shift', shift)
  confirmed = confirms
  redis.call('HSET', GENERATION, 'confirmed', confirmed)
end
-- Every process makes this call once a second.
if caller_time > heard then
  redis.call('HSET', GENERATION, 'heard', caller_time)
end
return { generation, shard_time, server_time, heard, confirmed }
