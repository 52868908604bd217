-- No slot of the destination starts before `till`; a hold is only ever extended.
--
-- KEYS    the shard
-- ARGV    the destination, till
-- Answer  the generation

local id, till = text(), number()
local job = load_job(id)
job.held_until = math.max(job.held_until, till)
if job.slots then
  hold_limiter(job.issued, till)
  hold_limiter(job.slots, till)
end
save_job(id, job)
notify('held', id, job.held_until)
return { generation }
