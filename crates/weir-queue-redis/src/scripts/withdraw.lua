-- Withdraws orphaned permits: a permit without a slot can get none any more, and its entry is moved to a reader that
-- records this.
--
-- KEYS    the shard
-- ARGV    the caller's time; the reader of withdrawn entries; then for each permit: its destination, its serial, its
--         entry
-- Answer  the generation; for each permit 1 when it had no slot, else 0

local withdrawn_reader = text()
local answer = { generation }
while more() do
  local id, permit, entry = text(), permit_named(text()), text()
  local unsent = redis.call('ZREM', queued_of(id), permit)
  if unsent == 1 then
    -- Idle time 0: the process that read the entry is dead. JUSTID: the caller has the entry already.
    redis.call('XCLAIM', QUEUE, WORKERS, withdrawn_reader, 0, entry, 'JUSTID')
  end
  answer[#answer + 1] = unsent
end
return answer
