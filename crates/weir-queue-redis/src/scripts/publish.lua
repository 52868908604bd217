-- Publishes the claims of runs: applies the limits to the cursors, appends the permits to the delivery queue, and
-- re-queues or removes each job, unless its run continues. A stale epoch publishes nothing, and neither does a run that
-- read the destination before an edit. Repeating a publication whose answer was lost changes nothing.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each publication:
--           the destination, the lease's epoch and version, a unique name of the publication
--           the terms that the run read, as a list of none or one: the number of the same ones in this call, or 0 and:
--             version, 1 when suspended, else 0, max_in_flight, held until, released at, limits as a list of: limit, period,
--             burst, margin; the minimum interval (0: none); 1 for a pace, else 0; when they end (0: never); the group or
--             nothing, weight, 1 when it is the budget of limit keys, else 0, their limit group or nothing
--           recovered cursors, as a list of none or one: last start (0: none), held until, the minimum interval (0:
--             none), a list of: limit, period, burst, margin, since, spent; in the window shape then the latest bucket that
--             is free again, and a list of: bucket, slots
--           the groups that the run read, as a list, the inner one first: their terms, and recovered cursors as above
--           the pace after the run, as a list of none or one: not before, spacing, window, generation, its state
--           the next run: continue, stop, at, soon, now, paced or on_settle; the due time of `at` or `soon`, else 0
--           a list of: when the claim expires, the delivery
-- Answer  the generation, the shard's earliest due time or nil, for each publication 1 when done, 0 when stale

local function read_pace()
  return {
    not_before = number(), spacing = number(), window = number(), generation = number(), state = text(),
    last_start = 0, granted = 0,
  }
end

local function read_publication()
  return {
    id = text(), epoch = number(), version = number(), name = text(),
    terms = list(read_terms)[1], recovered = list(read_limiter)[1], groups = list(read_group), pace = list(read_pace)[1],
    next = text(), next_due = number(),
    batch = list(read_delivery),
  }
end

local function follow(job, run)
  -- Unknown cursors come from the run, or begin one spacing from now. A hold from before applies to them.
  if not job.cursors then
    job.cursors = run.recovered or recovered_limiter(run.terms.limits, now)
    hold_limiter(job.cursors, job.held_until)
  end
  follow_terms(run.id, job, run.terms)
  -- The inner one first: it says which the outer one is.
  for _, read in ipairs(run.groups) do
    for _, shared in ipairs(FLOWS.shared_by(run.id, job)) do
      if read.terms.group == shared then
        follow_group(shared, read)
      end
    end
  end
  local group = group_of(run.id, job)
  job.is_key = group and group.of_keys
  -- What grants and reports have noted since the lease stays.
  if run.pace and job.pace then
    for _, noted in ipairs({ 'last_start', 'before_last', 'granted', 'was_full', 'reports' }) do
      run.pace[noted] = job.pace[noted]
    end
  end
  job.pace = run.pace
end

-- How far ahead the slot of a delivery without a run may be.
local AHEAD_AFTER = { stop = NEAR_SLOT, at = NEAR_SLOT, soon = FAST_PATH_AHEAD }

-- The permits of this publication move the member forward in the turn queue.
local function use_turn(job, run)
  local group = group_of(run.id, job)
  if not group or not job.turn then
    return
  end
  local promise = group.promised and group.promised[run.id]
  job.turn.at = job.turn.at + #run.batch / job.weight
  if job.turn.left then
    job.turn.left = math.max(job.turn.left - #run.batch, 0)
  end
  if promise then
    promise[1] = math.max(promise[1] - #run.batch, 0)
  end
end

-- Ends the turn of a run, if it had one. What it has left goes to the others at once. Returns whether nothing is left.
local function end_turn(id, job)
  local group, turn = group_of(id, job), job.turn
  if not group then
    return false
  end
  if group.promised then
    group.promised[id] = nil
  end
  local left = turn and turn.left or 0
  if turn then
    turn.left = nil
  end
  if left > 0 then
    call_waiting(job.group, true)
    if group.group and group.turn then
      group.turn.at = group.turn.at - left / group.weight
      call_waiting(group.group, true)
    end
  end
  return left == 0
end

-- Whether only its group delays a member, so that it waits for its next turn.
local function waits_for_group(id, job, next_run)
  return next_run == 'now'
    or next_run == 'paced' and job.cursors and paced_due(job, redis.call('ZCARD', queued_of(id)), now) <= now + CADENCE
end

local function requeue(job, run)
  local id, next_run, woken = run.id, run.next, job.woken
  use_turn(job, run)
  -- The run publishes once more under its lease, so the job stays as it is.
  if next_run == 'continue' then
    return
  end
  local had_turn = job.turn and job.turn.left
  local has_used_turn = end_turn(id, job)
  -- Later runs begin earlier by the time that this one took.
  if job.run_since then
    job.run_time = smoothed(job.run_time or 0, math.min(math.max(now - job.run_since, 0), LONGEST_RUN))
    job.run_since = nil
    for _, shared in ipairs(had_turn and FLOWS.shared_by(id, job) or {}) do
      local group = groups[shared]
      group.run_time = smoothed(group.run_time or 0, job.run_time)
    end
  end
  -- Only a run that found no live backlog opens the fast path.
  job.fast_path_ahead = AHEAD_AFTER[next_run]
  -- A wake during the lease counts: a stop would lose it, and a later due time would delay it. A new version is a wake,
  -- or an edit.
  if next_run == 'stop' and not woken and job.version == run.version then
    move_job(id, job, 'idle', nil)
  elseif next_run == 'stop' then
    schedule(id, job, woken or now, 0, false)
  elseif next_run == 'at' or next_run == 'soon' then
    schedule(id, job, math.min(woken or run.next_due, run.next_due), 0, false)
  elseif has_used_turn and waits_for_group(id, job, next_run) then
    -- It keeps its place: its run was under way.
    join_turns(id, job, had_turn and job.turn.at or first_turn(id, job))
    call_group(job.group, group_of(id, job), false)
  -- Paced: the permits of this publication are queued by now, so the pace counts them.
  elseif next_run == 'paced' then
    local due = job.cursors and paced_due(job, redis.call('ZCARD', queued_of(id)), now) or now
    schedule(id, job, due, due, false)
  elseif next_run == 'on_settle' and not job.settled
    and redis.call('EXISTS', queued_of(id), in_flight_of(id)) > 0 then
    schedule(id, job, now + RUN_FALLBACK, now + RUN_FALLBACK, true)
  -- A permit has ended since the lease was claimed, so there may be room.
  elseif next_run == 'on_settle' and job.cursors then
    local due = due_for_next_slot(job, redis.call('ZCARD', queued_of(id)), now)
    schedule(id, job, due, due, false)
  else
    schedule(id, job, now, now, false)
  end
end

local function publish(run)
  local job = load_job(run.id)
  -- This call has run before, and its answer was lost.
  if job.published == run.name then
    return 1
  end
  -- The job must still have this lease: not ended, and not claimed again.
  if job.phase ~= 'leased' or job.epoch ~= run.epoch then
    return 0
  end
  -- The run read the destination or one of its groups before an edit.
  local is_stale = run.terms and is_newer(job, run.terms)
  for _, read in ipairs(run.groups) do
    is_stale = is_stale or is_newer(group_named(read.terms.group), read.terms)
  end
  if is_stale then
    end_turn(run.id, job)
    schedule(run.id, job, now, 0, false)
    save_job(run.id, job)
    return 0
  end
  if run.terms then
    follow(job, run)
  end
  if #run.batch > 0 then
    issue_permits(run.id, job, run.batch, #run.batch, true)
  end
  requeue(job, run)
  if job.group then
    FLOWS.park(run.id, job)
  end
  -- The name is saved together with the job, so a repetition never finds one without the other.
  job.published = run.name
  save_job(run.id, job)
  return 1
end

local answer = { generation, false }
while more() do
  answer[#answer + 1] = publish(read_publication())
end
end_issuing()
save_groups()
-- After all publications, because each can change it.
answer[2] = earliest() or false
return answer
