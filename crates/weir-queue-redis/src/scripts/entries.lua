-- A page of the delivery queue, read or not.
--
-- KEYS    the shard
-- ARGV    the caller's time; the first entry, how many at most
-- Answer  the generation; how many entries there are in the page, the last one or nil, the beginning of each delivery

local from, most = text(), number()
local entries = redis.call('XRANGE', QUEUE, from, '+', 'COUNT', most)
local answer = { generation, #entries, #entries > 0 and entries[#entries][1] }
for _, entry in ipairs(entries) do
  answer[#answer + 1] = string.sub(entry[2][4], 1, DELIVERY_HEAD)
end
return answer
