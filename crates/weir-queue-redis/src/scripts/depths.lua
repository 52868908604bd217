-- Counts for gauges.
--
-- KEYS    the shard
-- ARGV    the caller's time
-- Answer  the generation; permits that no worker has read; the age of the oldest of them in microseconds, 0 when there
--         is none; permits queued; in flight; jobs; entries; entries read and not acknowledged

local entries = redis.call('XLEN', QUEUE)
local pending = redis.call('XPENDING', QUEUE, WORKERS)[1]
local queued, in_flight = 0, 0
-- Expired permits do not count, even if no script has dropped them yet.
for _, id in ipairs(redis.call('SMEMBERS', BUSY)) do
  queued = queued + redis.call('ZCOUNT', queued_of(id), now, '+inf')
  in_flight = in_flight + redis.call('ZCOUNT', in_flight_of(id), now, '+inf')
end

-- XINFO answers names and values alternately.
local function last_read()
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', QUEUE)) do
    for index = 1, #group, 2 do
      if group[index] == 'last-delivered-id' then
        return group[index + 1]
      end
    end
  end
end

local function oldest_age()
  -- No entry is unread.
  if entries == pending then
    return 0
  end
  -- The first entry behind the last one that was read. Its time is the fifth number of the permit; see permits.lua.
  local oldest = redis.call('XRANGE', QUEUE, '(' .. last_read(), '+', 'COUNT', 1)[1]
  local published = oldest and struct.unpack('>i8', oldest[2][2], 33) or now
  return math.max(now - published, 0)
end

local jobs = redis.call('ZCARD', SCHEDULE)
return { generation, entries - pending, oldest_age(), queued, in_flight, jobs, entries, pending }
