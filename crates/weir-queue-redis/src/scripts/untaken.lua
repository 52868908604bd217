-- Permits that no worker has read.

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

-- The age in microseconds of the oldest permit that no worker has read; 0 when there is none. `unread`: how many there
-- are.
local function oldest_untaken_age(unread)
  if unread == 0 then
    return 0
  end
  -- The first entry behind the last one that was read. Its time is the fifth number of the permit; see permits.lua.
  local oldest = redis.call('XRANGE', QUEUE, '(' .. last_read(), '+', 'COUNT', 1)[1]
  local published = oldest and struct.unpack('>i8', oldest[2][2], 33) or now
  return math.max(now - published, 0)
end
