-- Claims due jobs, and jobs whose lease has ended, earliest due first.
--
-- KEYS    the shard
-- ARGV    the caller's time; how many at most, how long the leases last
-- Answer  the generation, the earliest remaining due time or nil, permits that no worker has read, the leases; each:
--         destination, epoch, version, due, permits queued and in flight, how long workers take to be ready, the
--         lowered maximum of outstanding permits or 0, since when no earlier permit gets a slot, the cursors or nil (last
--         start or nil, held until, the minimum interval or 0, and for each limit: limit, period, burst, margin, since,
--         spent; for each ring the same with until when it is kept or 0, and the usual cost or 0, and then the latest
--         bucket that is free again, how many buckets there are, and each with its slots); and of an adaptive destination
--         its pace: state, not before, spacing, window, generation, last start, granted, 1 when full, and the reports,
--         each with its arrival; and of a member of a group its turn: permits; the group, 1 when nothing of it is unknown,
--         since when it is known; and of a limit key the same of the limit group of its destination

-- How many permits end in the time of two runs and of the preparation, as measured since the last claim.
local function ended_meanwhile(job, outstanding)
  local ended = job.serial - outstanding
  local last = job.claimed or { now, ended }
  job.claimed = { now, ended }
  local time = job.preparation + 2 * (job.run_time or 0)
  local ahead = math.floor((ended - last[2]) * time / math.max(now - last[1], 1))
  return math.max(math.min(ahead, MOST_PERMITS_AHEAD * job.max_in_flight), 0)
end

local function cursors_of(limiter)
  if not limiter then
    return false
  end
  local parts = { limiter.last_start or false, limiter.held_until, limiter.interval or 0 }
  local function add(...)
    for _, part in ipairs({ ... }) do
      parts[#parts + 1] = part
    end
  end
  for _, cursor in ipairs(limiter.cursors) do
    local margin = cursor.margin or 0
    if not is_window(cursor) then
      add(cursor.limit, cursor.period, cursor.burst, margin, cursor.since, cursor.spent)
    end
    if is_window(cursor) or cursor.ring then
      trust_ring(limiter, cursor)
      local in_costs = is_in_costs(cursor)
      local code = (in_costs and COSTED or SHAPED) + window_of(cursor.period) / 1000000
      add(cursor.limit, code, 1, margin, cursor.ring_until or 0, in_costs and limiter.usual_cost or 0)
      add(cursor.ring[1], (#cursor.ring - RING_HEAD) / 2)
      each_bucket(cursor.ring, function(bucket, slots)
        add(bucket, slots)
      end)
    end
  end
  return parts
end

-- The pace with what was noted since the last run; the notes begin anew.
local function lend_pace(pace)
  local parts = {
    pace.state, pace.not_before, pace.spacing, pace.window, pace.generation, pace.last_start, pace.granted,
    pace.was_full and 1 or 0,
  }
  for _, report in ipairs(pace.reports or {}) do
    parts[#parts + 1], parts[#parts + 2] = report[1], report[2]
  end
  pace.granted, pace.was_full, pace.reports = 0, nil, nil
  return parts
end

local most, lease_for = number(), number()
local leases = {}

-- `turn`: the share of the run in its group, if the job has one.
local function lend(id, job, due, turn)
  -- A leased job stays in the schedule, at the end of its lease, so that it runs again if its scheduler dies.
  move_job(id, job, 'leased', now + lease_for)
  -- The new epoch makes a publication of an earlier lease stale. Wakes and settles from here on are those of this
  -- lease.
  job.epoch = job.epoch + 1
  job.woken, job.settled = nil, nil
  local queued, in_flight = 0, 0
  -- Most limit keys have none, and each is claimed for a few deliveries.
  if not job.group or redis.call('EXISTS', queued_of(id), in_flight_of(id)) > 0 then
    queued, in_flight = count_valid(queued_of(id)), count_valid(in_flight_of(id))
  end
  local ahead = ended_meanwhile(job, queued + in_flight)
  local pace = job.pace and lend_pace(job.pace)
  save_job(id, job)
  leases[#leases + 1] = {
    id, job.epoch, job.version, due,
    queued, in_flight,
    job.preparation, job.run_time or 0, ahead, lowered_maximum(job) or 0,
    -- A job of an earlier version does not say it.
    job.known_since or now, cursors_of(job.cursors), pace or turn and false, turn,
  }
end

local function turn_of(id, job, permits)
  local turn = { permits }
  for _, group_id in ipairs(FLOWS.shared_by(id, job)) do
    local group = groups[group_id]
    turn[#turn + 1], turn[#turn + 2], turn[#turn + 3] = group_id, is_known(group) and 1 or 0, group.known_since
  end
  return turn[2] and turn
end

-- The budget of limit keys waits for its turn in its limit group.
local function enter_outer(id, group)
  -- It keeps its place if only runs of its keys were under way.
  local keeps = group.turn and now - (group.ran or 0) <= LONGEST_RUN
  local at = first_turn(id, group)
  join_turns(id, group, keeps and group.turn.at or at)
  call_group(group.group, group_named(group.group), false)
end

-- Gives turns to the members that come first, and makes the group due for its next slots while others wait. `given`: how many
-- permits its limit group gives the budget of limit keys; nil while the limit group is not known. Returns how many of them
-- the runs may publish.
local function claim_group(id, group, due, given)
  local queued, in_flight = count_valid(queued_of(id)), count_valid(in_flight_of(id))
  local ahead = ended_meanwhile(group, queued + in_flight)
  local open, is_full, of_callers, hurried = 0, false, 0, group.hurried or 0
  group.hurried = nil
  if group.edited_at then
    FLOWS.run_parked(id, group)
  end
  if is_known(group) and not group.suspended then
    open, is_full, of_callers = open_turns(group, queued, in_flight, ahead)
    if hurried > 0 and not is_full then
      -- They take slots for which others have permits, which take the next ones.
      local next_open = open_turns(group, queued, in_flight, ahead, CADENCE)
      open = open + math.max(math.min(hurried, next_open - open), 0)
    end
    if group.group then
      open = given and math.min(open, given)
    end
  end
  local run_since = group.floor == group.due and group.due or nil
  local flows, used = give_turns(id, group, open, math.min(most - #leases, MOST_TURNS)), 0
  for _, flow in ipairs(flows) do
    local job, gives = flow.job, flow.count > 0 or not open or not is_known(group) or group.suspended
    used = used + flow.count
    if gives and job.is_group then
      group.promised = group.promised or {}
      group.promised[flow.id] = { FLOWS.OF_KEYS, now, lease_for }
      job.turn.at = flow.at
      group.preparation = smoothed(group.preparation, job.preparation)
      claim_group(flow.id, job, due, is_known(group) and flow.count or nil)
    elseif gives then
      job.turn.left, job.run_since = flow.count, run_since
      group.promised = group.promised or {}
      group.promised[flow.id] = { flow.count, now, lease_for }
      group.preparation = smoothed(group.preparation, job.preparation)
      lend(flow.id, job, due, turn_of(flow.id, job, flow.count))
    end
  end
  group.ran = now
  if group.group and given and group.turn then
    group.turn.at = group.turn.at - (given - used) / group.weight
  end
  if of_callers > 0 then
    CALLERS.promise(group.callers, math.min(of_callers, CALLERS.waiting(group)))
  end
  local waiting = CALLERS.waiting(group)
  if waiting == 0 and not FLOWS.has_turns(id) then
    move_job(id, group, 'idle', nil)
  elseif is_full and waiting == 0 or not is_known(group) then
    -- The next settle, or the publication of what is unknown, calls it.
    schedule(id, group, now + RUN_FALLBACK, now + RUN_FALLBACK, is_full)
  elseif group.suspended then
    schedule(id, group, now + CADENCE, now + CADENCE, false)
  elseif FLOWS.takes_turns(group) then
    local next_due = due_for_next_slot(group, others_in(id, group), now)
    if next_due > now or used == 0 then
      next_due = math.max(next_due, used == 0 and now + CADENCE or 0)
      schedule(id, group, next_due, next_due, false)
    else
      join_turns(id, group, group.turn.at)
      call_group(group.group, group_named(group.group), false)
    end
  else
    local next_due = paced_due(group, others_in(id, group), now)
    next_due = math.max(CALLERS.before_end(group, next_due), now + CADENCE)
    schedule(id, group, next_due, next_due, false)
  end
  return used
end

-- Members that wait for their turn since this call. Some have it in the same call, and are saved then.
FLOWS.joined = {}

local due_groups, joined_groups = {}, {}
local due = redis.call('ZRANGE', SCHEDULE, '-inf', now, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
for index = 1, #due, 2 do
  local id, due_at = due[index], tonumber(due[index + 1])
  local job = load_job(id)
  if job.is_group then
    groups[id] = groups[id] or job
    due_groups[#due_groups + 1] = { id, due_at }
  elseif job.group and job.cursors then
    -- A member waits for its turn. Only a run that is to find its cursors, or to close a shard that it has left, does not.
    join_turns(id, job, first_turn(id, job))
    FLOWS.joined[id] = job
    if not joined_groups[job.group] then
      joined_groups[job.group], joined_groups[#joined_groups + 1] = true, job.group
    end
  else
    -- A job without a floor may have been due for long, so it says nothing about the time of a run.
    job.run_since = job.phase == 'scheduled' and job.floor == job.due and job.due or nil
    lend(id, job, due_at, turn_of(id, job, 0))
  end
end
-- Once, after all of their members.
for _, id in ipairs(joined_groups) do
  local group = group_named(id)
  call_group(id, group, false)
  if FLOWS.is_due(group) then
    due_groups[#due_groups + 1] = { id, now }
  end
end
local index = 1
while due_groups[index] do
  local id, due_at = unpack(due_groups[index])
  local group = group_named(id)
  -- Once, and only while leases are left: otherwise it stays due.
  if #leases < most and group.ran ~= now then
    if not FLOWS.takes_turns(group) then
      claim_group(id, group, due_at)
    elseif group.phase ~= 'waiting' and FLOWS.has_turns(id) then
      enter_outer(id, group)
      if FLOWS.is_due(group_named(group.group)) then
        due_groups[#due_groups + 1] = { group.group, now }
      end
    elseif group.phase ~= 'waiting' then
      move_job(id, group, 'idle', nil)
    end
  end
  index = index + 1
end
for id, job in pairs(FLOWS.joined) do
  if job.phase == 'waiting' then
    save_job(id, job)
  end
end
save_groups()
local unread = redis.call('XLEN', QUEUE) - redis.call('XPENDING', QUEUE, WORKERS)[1]
return { generation, earliest() or false, unread, leases }
