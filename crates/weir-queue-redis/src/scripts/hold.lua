-- No slot of the destination starts before `till`; a hold is only ever extended.
--
-- KEYS    the shard
-- ARGV    the caller's time; the destination, till
-- Answer  the generation

local id, till = text(), number()
local job = load_job(id)
job.held_until = math.max(job.held_until, till)
if job.cursors then
  hold_limiter(job.cursors, till)
end
save_job(id, job)
return { generation }
