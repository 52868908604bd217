-- Drops entries of the delivery queue that lead nowhere. Those whose claims have expired, read or not, are what dead workers left:
-- never sent, and the store resolves their claims. Those that no worker has read for long, because there is none or all are behind,
-- are answered while their claims last: nobody can send them any more, so they go back and count as no attempt. Readers that are
-- gone are forgotten once they hold nothing. Oldest entries first, a page in each call.
--
-- KEYS    the shard
-- ARGV    the caller's time; entries looked at, how long an entry may wait to be read and how long a reader may be silent in milliseconds
-- Answer  the generation, entries dropped, those of them that nobody has read as a list of: permit, delivery

local page, unread_ms, silent_ms = number(), number(), number()

-- Two numbers, the first of which is a time in milliseconds.
local function entry_number(id)
  local ms, count = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(count)
end

local last_ms, last_count
for _, pairs_of in ipairs(redis.call('XINFO', 'GROUPS', QUEUE)) do
  for index = 1, #pairs_of, 2 do
    if pairs_of[index] == 'last-delivered-id' then
      last_ms, last_count = entry_number(pairs_of[index + 1])
    end
  end
end

local dropped, unread = {}, {}
for _, entry in ipairs(redis.call('XRANGE', QUEUE, '-', '+', 'COUNT', page)) do
  local permit, delivery = entry[2][2], entry[2][4]
  local ms, count = entry_number(entry[1])
  local is_unread = ms > last_ms or (ms == last_ms and count > last_count)
  -- The deadline is the third number of the permit; see permits.lua.
  local has_expired = struct.unpack('>i8', permit, 17) <= now
  if not has_expired and not (is_unread and ms + unread_ms <= server_time / 1000) then
    break
  end
  dropped[#dropped + 1] = entry[1]
  if is_unread then
    unread[#unread + 1] = permit
    unread[#unread + 1] = delivery
  end
end
if #dropped > 0 then
  redis.call('XACK', QUEUE, WORKERS, unpack(dropped))
  redis.call('XDEL', QUEUE, unpack(dropped))
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
return { generation, #dropped, unread }
