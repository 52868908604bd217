-- Turns of the members of a group: start-time fair queueing (Goyal, Vin and Cheng 1996). The turn queue is sorted by the
-- virtual time at which a member's next permit starts. A permit moves its member forward by 1 / weight, and the virtual
-- time of the group is that of the last permit that was given. So members with a backlog share the slots by their
-- weights, and none saves up turns while it has nothing to send.
--
-- A job that has, or had, a turn keeps it: turn = { at = its virtual time, left = how many more permits the run may
-- publish }.
--
-- Callers outside Weir who wait for slots are one more member with weight 1: callers = { at = their virtual time, wanted =
-- how many slots they want, promised = how many of them a run has promised, expires = when they have gone, unless they ask
-- again }.

-- Permits that runs under way may still publish. Runs that have died publish none. A promise is { permits, since when, for
-- how long }; one from the future was made while the clock was wrong.
--
-- The budget of limit keys has as many as the runs of its keys.
local function promised_by(group)
  local promised = 0
  for id, promise in pairs(group.promised or {}) do
    local count = promise[1] == FLOWS.OF_KEYS and promised_by(group_named(id)) or promise[1]
    if now < promise[2] or now >= promise[2] + promise[3] then
      group.promised[id] = nil
    else
      promised = promised + count
    end
  end
  return promised
end

-- The callers of a group. What they have left who do not ask any more goes to the others.
function CALLERS.of(group)
  local callers = group.callers
  if not callers or now >= callers.expires or now < callers.expires - 2 * CALLERS.KEPT then
    callers = { at = callers and callers.at or 0, wanted = 0, promised = 0, expires = 0 }
    group.callers = callers
  end
  return callers
end

-- For how many slots they wait that no run has promised them.
function CALLERS.waiting(group)
  local callers = group.callers and CALLERS.of(group)
  return callers and math.max(callers.wanted - callers.promised, 0) or 0
end

function CALLERS.promise(callers, count)
  callers.at, callers.promised = callers.at + count, callers.promised + count
end

-- Permits and promises that take slots of the group before any other.
local function others_in(id, group)
  return count_valid(queued_of(id)) + promised_by(group) + (group.callers and CALLERS.of(group).promised or 0)
end

-- Slots that are promised to callers who do not fetch them are free again then.
function CALLERS.before_end(group, due)
  local callers = group.callers and CALLERS.of(group)
  return callers and callers.promised > 0 and math.min(due, callers.expires) or due
end

-- Whether a budget of limit keys takes its turns in a limit group: unless a run of a key has to bring something first.
function FLOWS.takes_turns(group)
  return group.group and is_known(group) and not group.suspended
end

-- Makes the entry of a group due for its next free slot: CADENCE after its last claim, or sooner where turns were left.
local function call_group(id, group, sooner)
  -- It waits for its turn in the limit group.
  if group.phase == 'waiting' and FLOWS.takes_turns(group) and score_in(turns_of(group.group), id) then
    return
  end
  local is_scheduled = group.phase == 'scheduled' and score_in(SCHEDULE, id)
  local earliest_due = now
  if not sooner and not FLOWS.takes_turns(group) then
    earliest_due = math.max(now, math.min(group.ran or 0, now) + CADENCE)
  end
  -- Many members join in one call, and counting what others have costs most of it.
  if is_scheduled and group.due <= earliest_due then
    return
  end
  local due = is_known(group) and not group.suspended and CALLERS.before_end(group, due_for_next_slot(group, others_in(id, group), now)) or now
  due = math.max(due, earliest_due)
  if not is_scheduled or (due < group.due and (sooner or not group.on_settle)) then
    schedule(id, group, due, due, false)
  end
end

-- Puts a job into the turn queue of its group, which is to be called then.
local function join_turns(id, job, at)
  job.turn = { at = at }
  move_job(id, job, 'waiting', nil)
  move_in(turns_of(job.group), id, at)
end

-- The turn of a job that comes back with a backlog: it begins at the virtual time.
--
-- The slots until the next paced claim of the group have permits already. A job that its own limits have delayed, and that has
-- had no more than its share, would miss its own slot: so the group is claimed at once, and the job is `in_time`.
local function first_turn(id, job)
  local group = group_of(id, job)
  local at, virtual_time = job.turn and job.turn.at or 0, group.virtual_time or 0
  local is_delayed = job.cursors and slot_after(job, redis.call('ZCARD', queued_of(id)), now) > now
  job.in_time = at <= virtual_time and (is_delayed or job.hurried) and true or nil
  group.hurried = (group.hurried or 0) + (job.in_time and 1 or 0)
  return math.max(at, virtual_time)
end

-- Whether members wait in a group.
function FLOWS.has_turns(id)
  write_moves()
  return redis.call('EXISTS', turns_of(id)) == 1
end

-- Whether a group is to be claimed now.
function FLOWS.is_due(group)
  return (group.due or math.huge) <= now or (group.hurried or 0) > 0
end

-- Calls a group if members wait in it. A group that waits for room is called only `sooner`, when there is some.
local function call_waiting(id, sooner)
  if FLOWS.has_turns(id) or CALLERS.waiting(group_named(id)) > 0 then
    call_group(id, group_named(id), sooner)
  end
end

-- How many permits may be given now, whether `max_in_flight` is what binds, and how many more there are for callers, whose
-- calls it does not count: as `weir_core::plan::allowance`. `ahead`: how many permits end until these are ready.
-- `later`: if they were given in the next paced claim.
local function open_turns(group, queued, in_flight, ahead, later)
  local promised = group.callers and CALLERS.of(group).promised or 0
  local others = queued + promised_by(group) + promised
  local room = most_outstanding(group) + ahead - in_flight - (others - promised)
  local waiting = CALLERS.waiting(group)
  local most = math.min(MAX_PER_RUN, math.max(room, waiting))
  for _, cursor in ipairs(group.cursors.cursors) do
    most = math.min(most, cursor.limit + cursor.burst - 1 - others)
  end
  local before = now + CADENCE + LEAD + group.preparation + 2 * (group.run_time or 0) + (later or 0)
  local open, high = 0, most
  while open < high do
    local middle = math.ceil((open + high) / 2)
    if slot_after(group, others + middle - 1, now) < before then
      open = middle
    else
      high = middle - 1
    end
  end
  local of_members = math.max(math.min(open, room), 0)
  return of_members, of_members >= room, math.min(open - of_members, waiting)
end

-- Gives each of these members, in the order of their turns, the permits that start before any permit that is left over: its
-- part of `open`, rounded. Returns how many are left over: one for each member, or a few more.
function FLOWS.give_parts(group, flows, open)
  local level, weights, sum = 0, 0, open
  for index, flow in ipairs(flows) do
    local weight, following = flow.job.weight, flows[index + 1]
    weights, sum = weights + weight, sum + flow.at * weight - 1
    level = math.max(sum / weights, flow.at)
    if following and level <= following.at then
      break
    end
  end
  for _, flow in ipairs(flows) do
    if flow.at >= level or open == 0 then
      break
    end
    local weight = flow.job.weight
    flow.count = math.min(math.ceil((level - flow.at) * weight), open)
    flow.at, open = flow.at + flow.count / weight, open - flow.count
    group.virtual_time = math.max(group.virtual_time or 0, flow.at - 1 / weight)
  end
  return open
end

-- Gives `open` permits to the members whose turn it is, at most `most` members. If something of the group, or of its limit
-- group (then `open` is nil), is not known, one member gets a turn without permits: its run finds it. All of them do while the group is suspended: their runs stop.
local function give_turns(id, group, open, most)
  local flows, needed = {}, is_known(group) and open and (group.suspended and most or math.min(open, most)) or 1
  open = open or 0
  write_moves()
  local waiting = needed > 0 and redis.call('ZRANGE', turns_of(id), 0, needed - 1, 'WITHSCORES') or {}
  for index = 1, #waiting, 2 do
    local job = groups[waiting[index]] or FLOWS.joined and FLOWS.joined[waiting[index]] or load_job(waiting[index])
    if job.is_group then
      job = group_named(waiting[index])
    end
    if job.phase == 'waiting' and job.group == id then
      flows[#flows + 1] = { id = waiting[index], job = job, at = tonumber(waiting[index + 1]), count = 0 }
    else
      move_in(turns_of(id), waiting[index], false)
    end
  end
  if open > #flows and CALLERS.waiting(group) == 0 then
    open = FLOWS.give_parts(group, flows, open)
  end
  -- Each step of the search gives a member several permits at once if there are many to give, so that there are few steps.
  local step = math.max(math.floor(open / (4 * (#flows + 1))), 1)
  while open > 0 and (flows[1] or CALLERS.waiting(group) > 0) do
    local first, waiting = flows[1], CALLERS.waiting(group)
    for _, flow in ipairs(flows) do
      first = flow.at < first.at and flow or first
    end
    local count = math.min(step, open)
    if waiting > 0 and (not first or group.callers.at < first.at) then
      count = math.min(count, waiting)
      group.virtual_time = math.max(group.virtual_time or 0, group.callers.at)
      CALLERS.promise(group.callers, count)
      first = { at = 0, count = 0, job = { weight = 1 } }
    else
      group.virtual_time = math.max(group.virtual_time or 0, first.at)
    end
    first.at, first.count, open = first.at + count / first.job.weight, first.count + count, open - count
  end
  return flows
end
