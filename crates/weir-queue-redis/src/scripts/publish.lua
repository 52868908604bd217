-- Publishes what runs claimed: moves the cursors over to the limits, appends the permits to the delivery queue, and re-queues or
-- removes each job, unless its run continues. A stale epoch publishes nothing, nor does a run that an edit overtook; the repeat
-- of a publication whose answer was lost changes nothing.
--
-- KEYS    the shard
-- ARGV    1 when the caller takes the permits, 0 when they go into the delivery queue; then for each publication:
--           the destination, the lease's epoch and version, a name that no other publication has
--           limits, as a list of: limit, period, burst
--           recovered cursors, as a list of none or one: last start (0: none), held until, a list of: limit, period, burst, cursor
--           how the job goes on: continue, stop, at, soon, now, paced, on_settle or on_wake; the due time of `at` or `soon`, else 0
--           how many permits, and when the last of their claims expires; or, when they go into the delivery queue, a list of: when
--           the claim expires, and the delivery
-- Answer  the generation, the shard's earliest due time or nil, for each publication 0 when stale, and when done 1, or, when the
--         caller takes the permits, the serial of the first and their slots (start and end, packed)

local function read_lane()
  local lane = read_limit()
  lane.cursor = number()
  return lane
end

local function read_limiter()
  local last_start, held_until = number(), number()
  return { last_start = last_start > 0 and last_start or nil, held_until = held_until, lanes = list(read_lane) }
end

local straight = number() == 1

local function read_publication()
  return {
    id = text(), epoch = number(), version = number(), name = text(),
    limits = list(read_limit), recovered = list(read_limiter)[1],
    next = text(), next_due = number(),
    batch = read_batch(straight),
  }
end

local function copy(limiter)
  return cmsgpack.unpack(cmsgpack.pack(limiter))
end

local function ensure_cursors(job, run)
  if not job.slots then
    job.issued = run.recovered or recovered_limiter(run.limits, now)
    hold_limiter(job.issued, job.held_until)
    job.slots = copy(job.issued)
  end
  if not follows(job.slots, run.limits) then
    job.last_taker = nil
  end
  reconfigure(job.issued, run.limits)
  reconfigure(job.slots, run.limits)
end

local function has_permits(id)
  return redis.call('EXISTS', queued_of(id), in_flight_of(id)) > 0
end

-- How far ahead the slot of a new delivery may be that goes without a run.
local AHEAD_AFTER = { stop = 0, at = 0, soon = EXPRESS_AHEAD }

local function requeue(job, run)
  local id, next_run, woken = run.id, run.next, job.woken
  if next_run == 'continue' then
    return
  end
  job.express_ahead = AHEAD_AFTER[next_run]
  if next_run == 'stop' and not woken and job.version == run.version then
    move_job(id, job, 'idle', nil)
  elseif next_run == 'stop' then
    schedule(id, job, woken or now, 0, false)
  elseif next_run == 'at' or next_run == 'soon' then
    schedule(id, job, math.min(woken or run.next_due, run.next_due), 0, false)
  elseif next_run == 'paced' then
    local due = paced_due(job.issued, now)
    schedule(id, job, due, due, false)
  elseif next_run == 'on_wake' then
    schedule(id, job, woken or now + RUN_FALLBACK, 0, false)
  elseif next_run == 'on_settle' and not job.settled and has_permits(id) then
    schedule(id, job, now + RUN_FALLBACK, now + RUN_FALLBACK, true)
  else
    -- At once; room may have come since the lease was given.
    schedule(id, job, now, now, false)
  end
end

local function publish(run)
  local job = load_job(run.id)
  if job.published == run.name then
    -- The slots were in the answer that was lost; each permit asks for another.
    return straight and { job.published_first, '' } or 1
  end
  if job.phase ~= 'leased' or job.epoch ~= run.epoch then
    return 0
  end
  -- The run may have read the destination before the edit: its limits, or that it was not paused.
  if job.edited then
    schedule(run.id, job, now, 0, false)
    save_job(run.id, job)
    return 0
  end
  ensure_cursors(job, run)
  local first, slots = 0, ''
  if run.batch.count > 0 then
    -- The run read the destination after its last edit and found it neither paused nor deleted.
    job.suspended_at = nil
    first, slots = issue_permits(run.id, job, run.version, run.batch, run.batch.count, straight)
  end
  requeue(job, run)
  job.published, job.published_first = run.name, first
  save_job(run.id, job)
  return straight and { first, slots } or 1
end

local answer = { generation, false }
while more() do
  answer[#answer + 1] = publish(read_publication())
end
answer[2] = earliest() or false
return answer
