-- Drops what dead workers left: entries whose claims have expired, read or not. They are never sent: the store resolves their
-- claims. Readers that are gone are forgotten once they hold nothing. Oldest entries first, a page in each call.
--
-- KEYS    the shard
-- ARGV    entries looked at, how long a reader may be silent in milliseconds
-- Answer  the generation, entries dropped

local page, silent_ms = number(), number()
local expired = {}
for _, entry in ipairs(redis.call('XRANGE', QUEUE, '-', '+', 'COUNT', page)) do
  -- The deadline is the fourth number of the permit; see publish.lua.
  local expires = struct.unpack('>i8', entry[2][2], 25)
  if expires > now then
    break
  end
  expired[#expired + 1] = entry[1]
end
if #expired > 0 then
  redis.call('XACK', QUEUE, WORKERS, unpack(expired))
  redis.call('XDEL', QUEUE, unpack(expired))
end

for _, id in ipairs(redis.call('SRANDMEMBER', BUSY, page)) do
  redis.call('ZREMRANGEBYSCORE', queued_of(id), '-inf', now)
  redis.call('ZREMRANGEBYSCORE', in_flight_of(id), '-inf', now)
  if redis.call('EXISTS', queued_of(id), in_flight_of(id)) == 0 then
    redis.call('SREM', BUSY, id)
  end
end

for _, pairs_of in ipairs(redis.call('XINFO', 'CONSUMERS', QUEUE, WORKERS)) do
  local reader = {}
  for index = 1, #pairs_of, 2 do
    reader[pairs_of[index]] = pairs_of[index + 1]
  end
  if reader.pending == 0 and reader.idle > silent_ms then
    redis.call('XGROUP', 'DELCONSUMER', QUEUE, WORKERS, reader.name)
  end
end
return { generation, #expired }
