-- How much of everything the shard holds.
--
-- KEYS    the shard
-- ARGV    the caller's time
-- Answer  the generation; permits that no worker has read; permits queued; in flight; jobs; entries; entries read and not
--         done with

local entries = redis.call('XLEN', QUEUE)
local pending = redis.call('XPENDING', QUEUE, WORKERS)[1]
local queued, in_flight = 0, 0
for _, id in ipairs(redis.call('SMEMBERS', BUSY)) do
  queued = queued + redis.call('ZCOUNT', queued_of(id), now, '+inf')
  in_flight = in_flight + redis.call('ZCOUNT', in_flight_of(id), now, '+inf')
end
return { generation, entries - pending, queued, in_flight, redis.call('ZCARD', SCHEDULE), entries, pending }
