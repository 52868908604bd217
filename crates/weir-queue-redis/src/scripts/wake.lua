-- Makes sure that jobs run at `due` or earlier. A parked job becomes due earlier, but a paced job keeps its pace.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each wake: the destination, due
-- Answer  the generation

-- A waiting job is in a turn queue, and so may its group be; else the group is in the schedule.
local function is_kept(id, job)
  if job.phase == 'waiting' then
    return redis.call('ZSCORE', turns_of(job.group), id) and is_kept(job.group, load_job(job.group))
  end
  return redis.call('ZSCORE', SCHEDULE, id)
end

local before = earliest()
while more() do
  local id, due = text(), number()
  local job = load_job(id)
  -- A run under way does not stop a job whose version has changed.
  job.version = job.version + 1
  if job.phase ~= 'idle' and not is_kept(id, job) then
    -- The schedule was evicted, so no scheduler would ever claim the job.
    move_job(id, job, 'idle', nil)
  end
  if job.phase == 'idle' then
    schedule(id, job, due, 0, false)
  elseif job.phase == 'scheduled' then
    -- A paced job runs no sooner than its floor.
    local sooner = math.max(due, job.floor)
    if sooner < job.due then
      schedule(id, job, sooner, job.floor, job.on_settle)
    end
  elseif job.phase == 'leased' then
    -- The end of the run takes the wake into account.
    job.woken = math.min(job.woken or due, due)
  end
  save_job(id, job)
end
announce(before)
return { generation }
