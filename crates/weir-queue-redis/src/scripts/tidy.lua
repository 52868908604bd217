-- Drops old entries of the delivery queue, oldest first, one page in each call. Entries whose claims have expired, read
-- or not, are never sent; the store resolves their claims. Entries that no worker has read for long, because there is
-- no worker or all are behind, are returned while their claims last: no worker can send them any more, so their claims
-- are released and count as no attempt. Idle readers without entries are removed. When entries that belong to permits
-- were deleted or skipped, a new generation begins.
--
-- KEYS    the shard
-- ARGV    the caller's time; entries in a page; how long an entry may stay unread, and how long a reader may be idle,
--         both in milliseconds
-- Answer  the generation; how many entries were dropped; the unread ones as a list of: permit, delivery

local page, unread_ms, idle_ms = number(), number(), number()

-- The two numbers of an entry's id: a time in milliseconds and a counter.
local function entry_number(id)
  local ms, count = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(count)
end

local last_ms, last_count
-- How far the workers have read.
for _, pairs_of in ipairs(redis.call('XINFO', 'GROUPS', QUEUE)) do
  for index = 1, #pairs_of, 2 do
    if pairs_of[index] == 'last-delivered-id' then
      last_ms, last_count = entry_number(pairs_of[index + 1])
    end
  end
end

local function is_unread(id)
  local ms, count = entry_number(id)
  return ms > last_ms or (ms == last_ms and count > last_count)
end

local dropped, unread = {}, {}
local oldest = redis.call('XRANGE', QUEUE, '-', '+', 'COUNT', page)
-- The oldest entries, up to the first that may stay. The times are those of the permits, because the ids have the
-- server's own time, without the shift. The deadline is the third number of a permit, and its publication the fifth; see
-- permits.lua.
for _, entry in ipairs(oldest) do
  local permit, delivery = entry[2][2], entry[2][4]
  local was_unread = is_unread(entry[1])
  local has_expired = struct.unpack('>i8', permit, 17) <= now
  local published = struct.unpack('>i8', permit, 33)
  if not has_expired and not (was_unread and published + unread_ms * 1000 <= now) then
    break
  end
  dropped[#dropped + 1] = entry[1]
  if was_unread then
    unread[#unread + 1] = permit
    unread[#unread + 1] = delivery
  end
end
-- Acknowledged too: a deleted entry would stay in its reader's list.
if #dropped > 0 then
  redis.call('XACK', QUEUE, WORKERS, unpack(dropped))
  redis.call('XDEL', QUEUE, unpack(dropped))
end

-- Expired permits of some destinations, chosen at random, so that each has its turn.
for _, id in ipairs(redis.call('SRANDMEMBER', BUSY, page)) do
  redis.call('ZREMRANGEBYSCORE', queued_of(id), '-inf', now)
  redis.call('ZREMRANGEBYSCORE', in_flight_of(id), '-inf', now)
  if redis.call('EXISTS', queued_of(id), in_flight_of(id)) == 0 then
    redis.call('SREM', BUSY, id)
  end
end

-- Readers that ended long ago. One with entries stays: its permits are not resolved yet.
for _, pairs_of in ipairs(redis.call('XINFO', 'CONSUMERS', QUEUE, WORKERS)) do
  local reader = {}
  for index = 1, #pairs_of, 2 do
    reader[pairs_of[index]] = pairs_of[index + 1]
  end
  if reader.pending == 0 and reader.idle > idle_ms then
    redis.call('XGROUP', 'DELCONSUMER', QUEUE, WORKERS, reader.name)
  end
end

-- Every permit has an entry until it has ended. If the permits are more than the entries, somebody else has deleted
-- entries: no worker will ever ask for slots with their permits, which fill the room of their destinations until their
-- claims expire. A permit whose entry was dropped above is in its set until its process settles it, so the entries must
-- be missing for SHORT_FOR.
local function entries_are_missing()
  -- The count takes time that slots wait for, so it is not made in a very large shard.
  if redis.call('SCARD', BUSY) > MOST_COUNTED then
    return false
  end
  local permits = 0
  for _, id in ipairs(redis.call('SMEMBERS', BUSY)) do
    permits = permits + redis.call('ZCOUNT', queued_of(id), now, '+inf')
    permits = permits + redis.call('ZCOUNT', in_flight_of(id), now, '+inf')
  end
  return permits > redis.call('XLEN', QUEUE)
end

-- Entries that were read are in the list of a reader until they are deleted. If one of the oldest is in none, somebody
-- has set the group's position forward or removed a reader: no worker will ever get it.
local function entries_are_skipped()
  local pending = {}
  for _, one in ipairs(redis.call('XPENDING', QUEUE, WORKERS, '-', '+', page)) do
    pending[one[1]] = true
  end
  for index = #dropped + 1, #oldest do
    local id = oldest[index][1]
    if is_unread(id) then
      return false
    elseif not pending[id] then
      return true
    end
  end
  return false
end

local short_since = integer_in(redis.call('HGET', GENERATION, 'short_since'), 0, now)
if not entries_are_missing() and not entries_are_skipped() then
  redis.call('HDEL', GENERATION, 'short_since')
elseif not short_since then
  redis.call('HSET', GENERATION, 'short_since', now)
elseif now - short_since >= SHORT_FOR then
  begin_generation(server_run_id())
end
return { generation, #dropped, unread }
