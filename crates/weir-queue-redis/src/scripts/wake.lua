-- Makes sure that jobs run at `due` or earlier. A parked job becomes due earlier, but a paced job keeps its pace.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each wake: the destination, due
-- Answer  the generation

local before = earliest()
while more() do
  local id, due = text(), number()
  local job = load_job(id)
  -- A run under way does not stop a job whose version has changed.
  job.version = job.version + 1
  -- A waiting job is in a turn queue, and its group in the schedule.
  local is_kept = job.phase == 'idle' or redis.call('ZSCORE', SCHEDULE, job.phase == 'waiting' and job.group or id)
  if job.phase == 'waiting' and is_kept then
    is_kept = redis.call('ZSCORE', turns_of(job.group), id)
  end
  if not is_kept then
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
