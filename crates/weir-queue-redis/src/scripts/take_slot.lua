-- The only way to send: grants a slot to each permit whose worker is ready. One step checks all conditions, moves the
-- cursors, and marks the permit in flight.
--
-- KEYS    the shard
-- ARGV    the caller's time; from when the caller can use a slot, or 0 for at once; how wide a slot must be for the
--         caller's clock; then for each permit, each at most once: its destination, its serial, how long its worker took
--         to be ready, or -1 when that was reported before, the start of a missed slot in which nothing was sent, or 0,
--         and its cost
-- Answer  the generation; then for each permit two numbers: the start and end of its slot; or the start of its slot and 0,
--         when the slot is too far ahead; or 0 and 0, when the permit is withdrawn; or -1 and 0, when there is no room;
--         or -2 and 0, when the cost is above a limit;
--         then for each slot that was granted by a pace: the number of its permit, the pace's generation, and how many
--         are in flight

-- Not in the past, and not so late that no slot could be granted.
local usable_from = math.min(math.max(now, number()), now + GRANT_AHEAD)
local needed_width = number()

-- The requests by destination, in their order, so that each set of permits is read and written once.
local function read_requests()
  local destinations, by_id, count = {}, {}, 0
  while more() do
    local id, permit, preparation, missed = text(), permit_named(text()), number(), number()
    local requests = by_id[id]
    if not requests then
      requests = { id = id, permits = {}, preparations = {}, missed = {}, costs = {}, positions = {} }
      by_id[id] = requests
      destinations[#destinations + 1] = requests
    end
    count = count + 1
    local index = #requests.permits + 1
    requests.permits[index], requests.preparations[index], requests.positions[index] = permit, preparation, count
    requests.missed[index], requests.costs[index] = missed, number()
  end
  return destinations
end

-- The expiry times of the claims of queued permits, and of permits in flight; false for a permit that is not in the
-- set.
local function expiries(requests)
  local queued = redis.call('ZMSCORE', queued_of(requests.id), unpack(requests.permits))
  local in_flight
  for index = 1, #requests.permits do
    if not queued[index] then
      in_flight = in_flight or redis.call('ZMSCORE', in_flight_of(requests.id), unpack(requests.permits))
    end
  end
  return queued, in_flight or {}
end

-- `sending`: how many others are in flight.
local function put_in_flight(id, job, permits, scored, sending)
  -- All that are queued, and nothing else: the set is the other one from now on, and expires as it would.
  if sending == 0 and redis.call('ZCARD', queued_of(id)) == #permits then
    redis.call('RENAME', queued_of(id), in_flight_of(id))
    return
  end
  redis.call('ZREM', queued_of(id), unpack(permits))
  redis.call('ZADD', in_flight_of(id), unpack(scored))
  redis.call('PEXPIREAT', in_flight_of(id), expiry(job.permits_until))
end

-- How many permits of each group may still be put in flight, and those that are. Its sets change once, after all members.
local room_in, moved_in = {}, {}

-- How many permits of the group may be put in flight.
local function room_in_group(id, group)
  if not room_in[id] and group.held_until > now + GRANT_AHEAD then
    room_in[id] = math.huge
  elseif not room_in[id] then
    local room = most_outstanding(group) - redis.call('ZCARD', in_flight_of(id))
    room_in[id] = room > 0 and room or most_outstanding(group) - count_valid(in_flight_of(id))
  end
  return room_in[id]
end

-- The same in the sets of the groups.
local function put_in_flight_there(id, shared, permits, scored)
  local names = names_in_group(id, permits)
  for _, group in ipairs(shared) do
    local moved = moved_in[group] or { names = {}, scored = {} }
    moved_in[group], room_in[group] = moved, room_in[group] - #names
    for index = 1, #names do
      local count = #moved.names + 1
      moved.names[count], moved.scored[2 * count - 1], moved.scored[2 * count] = names[index], scored[2 * index - 1], names[index]
    end
  end
end

-- The two numbers of a permit's answer. The pace of an adaptive destination can only delay its slot.
local function take(job, budgets, cost)
  local from = job.pace and math.max(usable_from, next_of_pace(job.pace)) or usable_from
  local start = next_start_in(budgets, from, cost)
  if start > now + GRANT_AHEAD then
    wait_for_room_in(budgets, cost, from, now, now + GRANT_AHEAD)
  end
  if start == math.huge then
    return -2, 0
  elseif start > now + SLOT_HORIZON then
    return 0, 0
  elseif start > now + GRANT_AHEAD then
    return start, 0
  end
  return take_slot_in(budgets, start, needed_width, cost)
end

local answer, paced = { generation }, {}

-- Moves the pace, and notes what the report of the answer will name.
local function note_pace(pace, slot_start, is_first, sending, position)
  if slot_start > pace.last_start then
    pace.before_last, pace.last_start = pace.last_start, slot_start
  end
  pace.granted = pace.granted + (is_first and 1 or 0)
  for _, part in ipairs({ position, pace.generation, sending }) do
    paced[#paced + 1] = part
  end
end

local function grant_all(requests)
  local id = requests.id
  local job = load_job(id)
  local shared = FLOWS.shared_by(id, job)
  local queued, in_flight = expiries(requests)
  -- Terms that are over are unknown until the next run.
  local is_open = not job.suspended and is_known(job)
  local budgets, room_there = { job.cursors }, math.huge
  for _, group_id in ipairs(shared) do
    local group = groups[group_id]
    is_open = is_open and is_known(group) and not group.suspended
    budgets[#budgets + 1] = group.cursors
    room_there = math.min(room_there, room_in_group(group_id, group))
  end
  local is_behind = FLOWS.is_behind(job, groups[job.group])
  is_open = is_open and not is_behind
  -- The room below the maximum. Every grant of this call takes a part of it.
  local most = most_outstanding(job)
  -- During a hold a permit waits for its slot, not for room, and nothing can be granted.
  if job.held_until > now + GRANT_AHEAD then
    most = math.huge
  end
  local sending = redis.call('ZCARD', in_flight_of(id))
  local granted, scored = {}, {}
  for index, permit in ipairs(requests.permits) do
    local queued_score = queued[index]
    -- 0 for a permit in neither set: settled, withdrawn, or dropped after its expiry.
    local expires = tonumber(queued_score or in_flight[index] or 0)
    local slot_start, slot_end = 0, 0
    -- A permit in flight asks again after a missed slot, and has its room already.
    local may_send = expires > now and is_open
    if may_send and queued_score and (sending >= most or room_there <= 0) then
      slot_start = -1
      if job.pace and sending >= job.pace.window then
        job.pace.was_full = true
      end
    elseif may_send then
      if requests.preparations[index] >= 0 then
        job.preparation = smoothed(job.preparation, math.min(requests.preparations[index], LONGEST_PREPARATION))
      end
      -- While the missed slot is the last one, its spacing is given back first.
      give_back_in(budgets, requests.missed[index], now, requests.costs[index])
      if job.pace and job.pace.last_start == requests.missed[index] then
        job.pace.last_start = job.pace.before_last or 0
      end
      slot_start, slot_end = take(job, budgets, requests.costs[index])
      -- Only a granted slot moves a permit. Its score, the time at which its claim expires, goes with it.
      if queued_score and slot_end > 0 then
        sending, room_there = sending + 1, room_there - 1
        granted[#granted + 1] = permit
        scored[#scored + 1] = queued_score
        scored[#scored + 1] = permit
      end
      if job.pace and slot_end > 0 then
        note_pace(job.pace, slot_start, queued_score, sending, requests.positions[index])
      end
    end
    -- Two numbers for each request, behind the generation, in the order of the requests.
    local offset = 2 * requests.positions[index]
    answer[offset], answer[offset + 1] = slot_start, slot_end
  end
  if #granted > 0 then
    put_in_flight(id, job, granted, scored, sending - #granted)
    if shared[1] then
      put_in_flight_there(id, shared, granted, scored)
    end
  end
  if is_behind then
    FLOWS.run_at_once(id, job)
  end
  save_job(id, job)
end

for _, requests in ipairs(read_requests()) do
  grant_all(requests)
end
for group, moved in pairs(moved_in) do
  put_in_flight(group, groups[group], moved.names, moved.scored, redis.call('ZCARD', in_flight_of(group)))
end
save_groups()
for _, part in ipairs(paced) do
  answer[#answer + 1] = part
end
return answer
