-- Limit groups. A group is a job of its own, under its id in the form of a destination's: its cursors, terms and hold are
-- kept as a destination's are, and `is_group` is set. Its queued and in-flight sets hold the permits of all members. A
-- member's job names it in `group`; without one none of these functions does anything.
--
-- The budget of limit keys is a group, and may be a member of a limit group itself: then a key's permits are in the sets of
-- both, under the same names.
--
-- Members with a backlog wait in the turn queue of the group, in the phase `waiting`. The group has one entry in the
-- schedule, and its claim gives turns to the members that come first (turns.lua).

local groups = {}

-- Drops permits whose claims have expired and counts the others. Expired permits would use up the room permanently.
local function count_valid(permits)
  redis.call('ZREMRANGEBYSCORE', permits, '-inf', now)
  return redis.call('ZCARD', permits)
end

-- Whether no run need bring terms or cursors of a job or a group first. The terms of an override end.
local function is_known(job)
  return job.cursors and now < (job.terms_until or math.huge)
end

-- Each group is read and written once in a call.
local function group_named(id)
  if not groups[id] then
    groups[id] = load_job(id)
    groups[id].is_group = true
  end
  return groups[id]
end

-- The group of a job. If it was lost, the permits that the job had under it are lost, too: they get no slots any more.
local function group_of(id, job)
  if not job.group then
    return nil
  end
  local group = group_named(job.group)
  if job.group_since ~= group.known_since then
    redis.call('DEL', queued_of(id), in_flight_of(id))
    FLOWS.has_lost = true
    job.group_since, job.turn = group.known_since, nil
    if job.is_group then
      -- So have those of its keys.
      job.known_since = now
    elseif job.is_key then
      -- It may have been granted slots elsewhere meanwhile.
      job.cursors, job.known_since = nil, now
    end
  end
  return group
end

-- The ids of the groups whose budgets a job shares, the inner one first. Their jobs are in `groups` then.
function FLOWS.shared_by(id, job)
  local group = group_of(id, job)
  if group and group_of(job.group, group) then
    return { job.group, group.group }
  end
  return { job.group }
end

-- A destination with limit keys is the group of its keys. A key whose terms are older than those of the destination gets no
-- slot until a run has brought the new ones.
function FLOWS.is_behind(job, group)
  return group and group.of_keys and job.terms_version < group.terms_version
end

-- Its job runs at once, or again if it is leased.
function FLOWS.run_at_once(id, job)
  if job.phase == 'leased' then
    job.woken = now
  elseif job.phase == 'idle' or job.phase == 'scheduled' and job.due > now then
    local before = earliest()
    schedule(id, job, now, 0, false)
    announce(before)
  end
end

-- Notes a key that its own terms delay for long: it may run sooner after an edit.
function FLOWS.park(id, job)
  local is_paused = job.phase == 'idle' and job.suspended
  local is_delayed = job.phase == 'scheduled' and job.floor == job.due and job.due > now + RUN_FALLBACK
  if group_of(id, job).of_keys and (is_paused or is_delayed) then
    redis.call('ZADD', FLOWS.parked_of(job.group), now, id)
    redis.call('PEXPIREAT', FLOWS.parked_of(job.group), expiry(now + WAITING_KEPT))
    job.parked = true
  end
end

-- The keys that were delayed when the destination was edited run: a part of them now, further ones with the next claim of the
-- group.
function FLOWS.run_parked(id, group)
  local parked = redis.call('ZRANGE', FLOWS.parked_of(id), '-inf', group.edited_at, 'BYSCORE', 'LIMIT', 0, FLOWS.PART)
  for _, flow in ipairs(parked) do
    move_in(SCHEDULE, flow, now)
  end
  if #parked > 0 then
    redis.call('ZREM', FLOWS.parked_of(id), unpack(parked))
  end
  group.edited_at = #parked == FLOWS.PART and group.edited_at or nil
end

local function save_groups()
  for id, group in pairs(groups) do
    save_job(id, group)
  end
end

-- The permits of a member in the sets of its groups, as long as their names in its own sets.
local function names_in_group(id, permits)
  local names, from = {}, #id + 1
  for index = 1, #permits do
    names[index] = id .. string.sub(permits[index], from)
  end
  return names
end

-- Moves a job to another group of the shard, with its permits; nil: to none.
local function regroup(id, job, group)
  if job.group == group then
    return
  end
  local left = FLOWS.shared_by(id, job)
  local joined = group and { group, group_of(group, group_named(group)) and group_named(group).group } or {}
  FLOWS.unpark(id, job)
  for _, set_of in ipairs({ queued_of, in_flight_of }) do
    local scored = redis.call('ZRANGE', set_of(id), 0, -1, 'WITHSCORES')
    for index = 1, #scored, 2 do
      local name = job.is_group and scored[index] or names_in_group(id, { scored[index] })[1]
      for _, other in ipairs(left) do
        redis.call('ZREM', set_of(other), name)
      end
      for _, other in ipairs(joined) do
        redis.call('ZADD', set_of(other), scored[index + 1], name)
      end
    end
    for _, other in ipairs(#scored > 0 and joined or {}) do
      local shared = group_named(other)
      shared.permits_until = math.max(shared.permits_until, job.permits_until)
      redis.call('PEXPIREAT', set_of(other), expiry(shared.permits_until))
    end
  end
  local before = job.group and group_named(job.group)
  if before and before.promised then
    before.promised[id] = nil
  end
  -- The next claim puts it into the turn queue of its new group.
  if job.phase == 'waiting' then
    schedule(id, job, now, 0, false)
  end
  job.group, job.group_since, job.turn = group, group and group_named(group).known_since, nil
end
