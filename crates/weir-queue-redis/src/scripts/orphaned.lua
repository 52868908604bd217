-- The entries that a reader holds, oldest first. It is called for the readers of dead processes.
--
-- KEYS    the shard
-- ARGV    the caller's time; the reader, how many entries at most
-- Answer  the generation; for each entry: its id, the permit, the beginning of the delivery

local reader, most = text(), number()
local answer = { generation }
for _, pending in ipairs(redis.call('XPENDING', QUEUE, WORKERS, '-', '+', most, reader)) do
  local id = pending[1]
  local entry = redis.call('XRANGE', QUEUE, id, id)[1]
  if entry then
    answer[#answer + 1] = id
    answer[#answer + 1] = entry[2][2]
    answer[#answer + 1] = string.sub(entry[2][4], 1, DELIVERY_HEAD)
  else
    -- The entry is deleted, so it only has to leave the reader's list.
    redis.call('XACK', QUEUE, WORKERS, id)
  end
end
return answer
