-- What a reader has in hand, oldest first.
--
-- KEYS    the shard
-- ARGV    the caller's time; the reader, how many entries at most
-- Answer  the generation; for each entry: its name, the permit, the beginning of the delivery

local reader, most = text(), number()
local answer = { generation }
for _, pending in ipairs(redis.call('XPENDING', QUEUE, WORKERS, '-', '+', most, reader)) do
  local name = pending[1]
  local entry = redis.call('XRANGE', QUEUE, name, name)[1]
  if entry then
    answer[#answer + 1] = name
    answer[#answer + 1] = entry[2][2]
    answer[#answer + 1] = string.sub(entry[2][4], 1, DELIVERY_HEAD)
  else
    redis.call('XACK', QUEUE, WORKERS, name)
  end
end
return answer
