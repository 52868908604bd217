-- Another slot for a permit that has none or missed it: in flight → queued.
--
-- KEYS    the shard
-- ARGV    the destination, the permit's serial, 1 when a standing connection was found, else 0, 1 when the slot comes in
--         exchange for the one that it was given last, else 0
-- Answer  the generation, and the slot's start and end; without them the permit is withdrawn, as is one whose slot would be
--         beyond the horizon

local id, serial, warm, in_exchange = text(), text(), number() == 1, number() == 1
local permit = permit_named(serial)
serial = tonumber(serial)
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
if in_exchange then
  give_back(job, serial, now)
end
local slot_start, slot_end = take_near_slot(job, serial, now)
if not slot_start then
  -- The permit goes back. Another is issued in its place when that slot is near: the run that this one was the pace of comes
  -- sooner.
  move_cursors(job.issued, -1)
  catch_up(job.issued, job.slots)
  local pace = paced_due(job.issued, now)
  if job.phase == 'scheduled' and not job.on_settle and job.due == job.floor and pace < job.due then
    local before = earliest()
    schedule(id, job, pace, pace, false)
    announce(before)
  end
end
save_job(id, job)
return { generation, slot_start, slot_end }
