-- Gives a reserved slot of a group back that nobody has used, if it is the last that the group has granted.
--
-- KEYS    the shard
-- ARGV    the caller's time; the group, the cost, the start of the slot
-- Answer  the generation

local before = earliest()
local id, cost, slot_start = text(), number(), number()
local group = group_named(id)
if group.cursors then
  give_back(group.cursors, slot_start, now, cost)
  call_waiting(id, true)
  save_groups()
end
announce(before)
return { generation }
