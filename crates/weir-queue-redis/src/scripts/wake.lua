-- Makes sure that jobs run at `due` or earlier. A parked job becomes due earlier, but a paced job keeps its pace.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each wake: the destination, due
-- Answer  the generation

-- A waiting job is in a turn queue, and so may its group be; else the group is in the schedule.
local function is_kept(id, job)
  if job.phase == 'waiting' then
    return score_in(turns_of(job.group), id) and is_kept(job.group, load_job(job.group))
  end
  return score_in(SCHEDULE, id)
end

-- Most jobs that are woken are idle and become due at once. Nothing in such a job has to change: that it is in the schedule
-- says all, and its run finds it there. So it is neither unpacked nor written, which would be most of the work.
local IDLE, OWN = cmsgpack.pack('phase', 'idle'), cmsgpack.pack('generation', generation)
local PARKED = cmsgpack.pack('parked')

local function is_simply_idle(packed)
  return string.find(packed, IDLE, 1, true) and string.find(packed, OWN, 1, true)
    and not string.find(packed, PARKED, 1, true)
end

local function wake(id, due)
  local packed = string_at(job_of(id))
  if packed and due <= now and is_simply_idle(packed) then
    -- LT: one that is due already keeps its place.
    redis.call('ZADD', SCHEDULE, 'LT', due, id)
    return
  end
  local job, is_changed = load_job(id, packed), true
  -- A run under way does not stop a job whose version has changed.
  job.version = job.version + 1
  if job.phase ~= 'idle' and not is_kept(id, job) then
    -- The schedule was evicted, so no scheduler would ever claim the job.
    move_job(id, job, 'idle', nil)
  end
  if job.phase == 'idle' then
    -- An earlier wake may have made it due.
    schedule(id, job, math.min(due, tonumber(score_in(SCHEDULE, id) or due)), 0, false)
  elseif job.phase == 'scheduled' then
    -- A paced job runs no sooner than its floor.
    local sooner = math.max(due, job.floor)
    if sooner < job.due then
      schedule(id, job, sooner, job.floor, job.on_settle)
    else
      -- Its next run is early enough: it reads the store after the commit that caused this wake. The sweep wakes thousands of
      -- such jobs at a time, and a third of its work was to save them. An overdue job is saved: its key would expire otherwise.
      is_changed = job.due <= now
    end
  elseif job.phase == 'leased' then
    -- The end of the run takes the wake into account.
    job.woken = math.min(job.woken or due, due)
  end
  if is_changed then
    save_job(id, job)
  end
end

local before = earliest()
while more() do
  wake(text(), number())
end
announce(before)
return { generation }
