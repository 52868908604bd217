-- Takes slots of a group for callers outside Weir, who wait in this order. Together they have turns like one member with
-- weight 1: while nobody else waits a slot is taken at once, otherwise when a run of the group has promised it.
--
-- KEYS    the shard
-- ARGV    the caller's time; the group as in publish.lua; how wide a slot must be for the caller's clock; then for each slot
--         that is wanted: its cost, its width
-- Answer  the generation, the shard's earliest due time or nil; 0, or 1 when cursors or terms of the group are not known, or
--         2 when the cost of the first that was not granted is above a limit; when to ask again, or 0; when the slot of
--         the first that was not granted is expected, or 0; when the group's data began; for each granted slot its start
--         and end

local before = earliest()
local read, needed = read_group(), number()
local id = read.terms.group
local group = group_named(id)
if is_newer(group, read.terms) then
  -- The cursors follow the newer terms, which only a run or an edit brings.
  read.recovered = nil
else
  follow_group(id, read)
end
local callers = CALLERS.of(group)
local status, next_time, expected, slots = 0, 0, 0, {}

-- No member has a backlog, a run under way, or a permit without a slot.
local function nobody_else_waits()
  return not FLOWS.has_turns(id) and promised_by(group) == 0 and count_valid(queued_of(id)) == 0
end

-- The end of the slot, or nothing and when to ask again.
local function reserve(cost, width, is_alone)
  local has_turn = is_alone or callers.promised > 0
  local start = next_start(group.cursors, now, cost)
  if start == math.huge then
    status = 2
    return
  elseif not has_turn then
    return
  elseif start > now + GRANT_AHEAD then
    wait_for_room(group.cursors, cost, start, now)
    next_time = start - GRANT_AHEAD
    return
  end
  callers.promised, callers.wanted = math.max(callers.promised - 1, 0), math.max(callers.wanted - 1, 0)
  slots[#slots + 1], slots[#slots + 2] = start, take_slot(group.cursors, start, needed, cost, width)
  return true
end

local function reserve_all()
  local is_alone, left, is_open = nobody_else_waits(), 0, true
  while more() do
    local cost, width = number(), number()
    is_open = is_open and reserve(cost, width, is_alone)
    left = left + (is_open and 0 or 1)
  end
  if left == 0 or status ~= 0 then
    return
  end
  if callers.wanted <= callers.promised then
    callers.at = math.max(callers.at, group.virtual_time or 0)
  end
  callers.wanted, callers.expires = math.max(callers.wanted, left), now + CALLERS.KEPT
  call_waiting(id, false)
  expected = start_after(group.cursors, others_in(id, group), now)
  next_time = next_time > 0 and next_time or group.due or now
  next_time = math.min(math.max(next_time, now + 1000), now + CALLERS.AGAIN)
end

-- The only condition besides the cursors, which know of holds.
if not is_known(group) then
  status = 1
else
  reserve_all()
end
save_groups()
announce(before)
return { generation, earliest() or false, status, next_time, expected, group.known_since, unpack(slots) }
