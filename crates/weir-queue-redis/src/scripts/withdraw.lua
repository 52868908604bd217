-- Permits that are left: none that has no slot can get one any more, and the reader that is nobody has them in hand.
--
-- KEYS    the shard
-- ARGV    the caller's time; the reader that is nobody; then for each permit: its destination, its serial, its entry
-- Answer  the generation, for each permit 1 when it had no slot, else 0

local nobody = text()
local answer = { generation }
while more() do
  local id, permit, entry = text(), permit_named(text()), text()
  local unsent = redis.call('ZREM', queued_of(id), permit)
  if unsent == 1 then
    redis.call('XCLAIM', QUEUE, WORKERS, nobody, 0, entry, 'JUSTID')
  end
  answer[#answer + 1] = unsent
end
return answer
