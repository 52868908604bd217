-- Removes jobs of destinations whose budgets are in another shard now, with their permits: no permit of them gets a slot
-- any more, and no run of them can publish. A job with newer terms stays, because the caller has read old ones.
--
-- The budget of limit keys stays, suspended and without cursors: so no key gets a slot, and no run that has read older terms
-- can publish. The keys that wait run, and find out where they are.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each job: its destination, the version of the terms by which it has left, 1 for the
--         budget of limit keys, else 0
-- Answer  the generation; for each job 1 when it is gone, 0 when it has newer terms

local before = earliest()
local answer = { generation }
while more() do
  local id, version, of_keys = text(), number(), number() == 1
  local job = groups[id] or load_job(id)
  local is_closed = job.terms_version <= version
  if is_closed and of_keys then
    job.is_group, job.of_keys = true, true
    regroup(id, job, nil)
    job.terms_version, job.suspended, job.cursors = version, true, nil
    -- Each key finds that its budget has begun anew, and recovers its own.
    job.known_since, job.edited_at = now, now
    schedule(id, job, now, 0, false)
    save_job(id, job)
  elseif is_closed then
    regroup(id, job, nil)
    move_job(id, job, 'idle', nil)
    redis.call('DEL', job_of(id), queued_of(id), in_flight_of(id))
    redis.call('SREM', BUSY, id)
  end
  answer[#answer + 1] = is_closed and 1 or 0
end
save_groups()
announce(before)
return answer
