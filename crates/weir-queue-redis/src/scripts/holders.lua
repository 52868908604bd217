-- The readers that hold entries of the delivery queue: entries read and not acknowledged.
--
-- KEYS    the shard
-- ARGV    the caller's time
-- Answer  the generation, the names of readers

local answer = { generation }
for _, pairs_of in ipairs(redis.call('XINFO', 'CONSUMERS', QUEUE, WORKERS)) do
  local reader = {}
  for index = 1, #pairs_of, 2 do
    reader[pairs_of[index]] = pairs_of[index + 1]
  end
  if reader.pending > 0 then
    answer[#answer + 1] = reader.name
  end
end
return answer
