-- Removes jobs of destinations whose budgets are in another shard now, with their permits: no permit of them gets a slot
-- any more, and no run of them can publish. A job with newer terms stays, because the caller has read old ones.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each job: its destination, the version of the terms by which it has left
-- Answer  the generation; for each job 1 when it is gone, 0 when it has newer terms

local answer = { generation }
while more() do
  local id, version = text(), number()
  local job = load_job(id)
  local is_closed = job.terms_version <= version
  if is_closed then
    regroup(id, job, nil)
    move_job(id, job, 'idle', nil)
    redis.call('DEL', job_of(id), queued_of(id), in_flight_of(id))
    redis.call('SREM', BUSY, id)
  end
  answer[#answer + 1] = is_closed and 1 or 0
end
save_groups()
return answer
