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

local jobs = redis.call('ZCARD', SCHEDULE)
local unread = entries - pending
return { generation, unread, oldest_untaken_age(unread), queued, in_flight, jobs, entries, pending }
