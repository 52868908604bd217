-- Runs the jobs of edited destinations at once, whatever they wait for, and tells every worker which are suspended.
--
-- KEYS    the shard
-- ARGV    for each edit: the destination, 1 when it is suspended, else 0
-- Answer  the generation, the job's version after each edit

local before = earliest()
local answer = { generation }
while more() do
  local id, suspended = text(), number() == 1
  local job = load_job(id)
  job.version = job.version + 1
  job.suspended_at = suspended and job.version or nil
  -- The next run follows the edit, and tells anew whether there is a backlog.
  job.express_ahead = nil
  if job.phase == 'leased' then
    job.edited = true
  else
    schedule(id, job, now, 0, false)
  end
  save_job(id, job)
  notify(suspended and 'suspended' or 'resumed', id, job.version)
  answer[#answer + 1] = job.version
end
announce(before)
return answer
