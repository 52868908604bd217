-- Publishes deliveries without a run that were claimed as they were stored: as many as can be sent at once, to
-- destinations without a backlog, or to the flows of their limit keys. Each permit needs room and a slot in every budget of
-- its flow, beside one permit for each member that waits there for its turn.
--
-- KEYS    the shard
-- ARGV    the caller's time; the name of the caller, whose last call is remembered; a unique name of the call; 1 when
--         the call is repeated, else 0; then for each destination: its id, the version of its terms, a list of: when
--         the claim expires, the delivery
-- Answer  the generation in which the call ran; for each destination: permits issued, how many more there is room for,
--         from when more are admitted; and if the job shares budgets that were looked at, the same two numbers of these

local caller, name, repeated = text(), text(), number() == 1
local admitted_by = SHARD .. ':admitted:' .. caller
local REMEMBERED_MS = 600000

-- If the call has run, its answer was lost: the caller gets it again, and nothing is published twice.
if repeated then
  local last = read_packed(admitted_by)
  if last and last.name == name then
    return last.answer
  end
end

-- Whether the last run found less than it was allowed to claim, so that at most a few deliveries are waiting. A job
-- without cursors, or with other terms, needs a run first.
local function admits(job, version)
  return job.fast_path_ahead and job.terms_version == version and not job.suspended and is_known(job)
    and job.phase ~= 'waiting'
end

-- Whether the workers are behind: permits that are issued now would be late.
local lagging = redis.call('XLEN', QUEUE) - redis.call('XPENDING', QUEUE, WORKERS)[1] > LAG_DEPTH

-- The least room of some budgets, and from when a permit has its slot near enough in all of them. A budget is a job, how
-- many permits wait for a slot in it, and how many more permits may be issued.
local function least(budgets, ahead)
  local room, from = math.huge, 0
  for _, budget in ipairs(budgets) do
    room, from = math.min(room, budget.room), math.max(from, slot_after(budget.job, budget.queued, now) - ahead)
  end
  return math.max(room, 0), from
end

-- How many permits, of `most`, have slots in all of these budgets that begin by `latest`.
local function slots_until(latest, budgets, most)
  for _, budget in ipairs(budgets) do
    local near, tried = 0, most
    while near < most do
      if slot_after(budget.job, budget.queued + tried - 1, now) <= latest then
        near = tried
      else
        most = tried - 1
      end
      tried = math.ceil((near + most) / 2)
    end
  end
  return most
end

-- The budget of the job. A run that is under way may publish its share of `max_in_flight`.
local function own_budget(id, job)
  local queued, in_flight = 0, 0
  -- Most limit keys have none.
  if not job.group or redis.call('EXISTS', queued_of(id), in_flight_of(id)) > 0 then
    queued, in_flight = redis.call('ZCARD', queued_of(id)), redis.call('ZCARD', in_flight_of(id))
  end
  local promised = job.phase == 'leased' and math.ceil(job.max_in_flight / SHARES) or 0
  return { job = job, queued = queued, room = most_outstanding(job) - queued - in_flight - promised }
end

-- The permits that are queued in each group, those that are in flight, and one for each member that waits for its turn, with
-- what is promised. Counted once, because a call may be about many keys of one destination.
local counts_of = {}

local function counts_in(id, group)
  if not counts_of[id] then
    counts_of[id] = {
      queued = redis.call('ZCARD', queued_of(id)),
      in_flight = redis.call('ZCARD', in_flight_of(id)),
      waiting = promised_by(group) + redis.call('ZCARD', turns_of(id)),
    }
  end
  return counts_of[id]
end

-- The budgets that the job shares, the inner one first; nil if one of them lets nothing be sent without a run. The members
-- that wait for their turn go first, and those inside such a member, too: each with one permit. No member goes before them
-- that has had more than its share.
local function shared_budgets(job, shared)
  local budgets, waiting, at = {}, 0, job.turn and job.turn.at or 0
  for index, id in ipairs(shared) do
    local group = groups[id]
    local counts = counts_in(id, group)
    waiting = waiting + counts.waiting
    if not is_known(group) or group.suspended or FLOWS.is_behind(job, group)
      or group.callers and CALLERS.of(group).wanted > 0 or waiting > 0 and at > (group.virtual_time or 0) then
      return nil
    end
    local queued = counts.queued + waiting
    budgets[index] = { job = group, queued = queued, room = most_outstanding(group) - queued - counts.in_flight }
    at = group.turn and group.turn.at or 0
  end
  return budgets
end

-- A permit that is issued without a run is a turn like any other: it moves the virtual time of each group to its start, and
-- its member behind it.
local function take_turns(job, shared, count)
  local member = job
  for _, id in ipairs(shared) do
    local group = groups[id]
    local at = math.max(member.turn and member.turn.at or 0, group.virtual_time or 0)
    group.virtual_time = at + (count - 1) / member.weight
    counts_of[id].queued = counts_of[id].queued + count
    member.turn = member.turn or {}
    member.turn.at = at + count / member.weight
    member = group
  end
end

local function admit(id, version, batch)
  local job = load_job(id)
  local shared = FLOWS.shared_by(id, job)
  -- A backlog, other terms, a suspended destination or workers that are behind: the deliveries wait for a run.
  if lagging or not admits(job, version) then
    return { 0, 0, 0 }
  end
  local ahead, own, others = job.fast_path_ahead, { own_budget(id, job) }, shared_budgets(job, shared)
  if not others then
    return { 0, 0, 0, 0, 0 }
  end
  local all = { own[1], unpack(others) }
  -- The first deliveries of the batch get the room. The others are declined.
  local count = slots_until(now + ahead, all, math.min(#batch, (least(all, ahead))))
  if count > 0 then
    take_turns(job, shared, count)
    issue_permits(id, job, batch, count, false)
    save_job(id, job)
  end
  for _, budget in ipairs(all) do
    budget.queued, budget.room = budget.queued + count, budget.room - count
  end
  local answer = { count }
  for _, budgets in ipairs({ own, others }) do
    if budgets[1] then
      local room, from = least(budgets, ahead)
      answer[#answer + 1], answer[#answer + 2] = slots_until(math.max(from, now) + ahead, budgets, room), from
    end
  end
  return answer
end

local answer = { generation }
while more() do
  local id, version = text(), number()
  answer[#answer + 1] = admit(id, version, list(read_delivery))
end
end_issuing()
for id, group in pairs(issued_in) do
  save_job(id, group)
end
-- For ten minutes: the caller repeats a call only while its claims last, and they do not last as long.
redis.call('SET', admitted_by, cmsgpack.pack({ name = name, answer = answer }), 'PX', REMEMBERED_MS)
return answer
