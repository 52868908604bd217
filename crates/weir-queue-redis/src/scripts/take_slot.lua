-- Another slot for a permit that has none or missed it: in flight → queued.
--
-- KEYS    the shard
-- ARGV    the destination, the permit's serial, 1 when a standing connection was found, else 0
-- Answer  the generation, and the slot's start and end; without them the permit is withdrawn, as is one whose slot would be
--         beyond the horizon

local id, permit, warm = text(), permit_named(text()), number() == 1
local job = load_job(id)
local queued, in_flight = queued_of(id), in_flight_of(id)
local back = redis.call('ZSCORE', in_flight, permit)
if back then
  redis.call('ZREM', in_flight, permit)
  redis.call('ZADD', queued, back, permit)
  redis.call('PEXPIREAT', queued, expiry(job.permits_until))
end
local expires = tonumber(redis.call('ZSCORE', queued, permit) or 0)
if job.suspended_at or expires <= now or not job.slots then
  return { generation }
end
job.warm_until = warm and now + WARM_FOR or 0
local slot_start, slot_end = take_near_slot(job, now)
save_job(id, job)
return { generation, slot_start, slot_end }
