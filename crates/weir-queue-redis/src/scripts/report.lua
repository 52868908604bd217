-- What workers did with their permits: started (queued → in flight) or ended (gone, used or not). A job that waits for room
-- runs. Each entry leaves the delivery queue with the first report of its permit. A report made twice changes nothing.
--
-- KEYS    the shard
-- ARGV    for each report: started or ended, the permit's generation, the destination, the serial, its entry or nothing
-- Answer  the generation

local before = earliest()
local jobs, changed, moved, entries = {}, {}, {}, {}

local function job_named(id)
  jobs[id] = jobs[id] or load_job(id)
  return jobs[id]
end

local function started(id, serial)
  local expires = redis.call('ZSCORE', queued_of(id), serial)
  if not expires then
    return
  end
  local job = job_named(id)
  redis.call('ZREM', queued_of(id), serial)
  redis.call('ZADD', in_flight_of(id), expires, serial)
  moved[id] = true
  -- A send over a standing connection keeps the destination warm; a little later will do for those right behind it.
  if now < job.warm_until and job.warm_until < now + WARM_FOR - WARM_STEP then
    job.warm_until = now + WARM_FOR
    changed[id] = true
  end
end

local function ended(id, serial)
  if redis.call('ZREM', in_flight_of(id), serial) == 0 and redis.call('ZREM', queued_of(id), serial) == 0 then
    return
  end
  local job = job_named(id)
  if job.phase == 'scheduled' and job.on_settle then
    schedule(id, job, now, now, false)
    changed[id] = true
  elseif job.phase == 'leased' and not job.settled then
    job.settled = true
    changed[id] = true
  end
end

while more() do
  local what, of, id, serial, entry = text(), number(), text(), text(), text()
  if of == generation then
    if what == 'started' then
      started(id, serial)
    else
      ended(id, serial)
    end
    if entry ~= '' then
      entries[#entries + 1] = entry
    end
  end
end
for id, job in pairs(jobs) do
  if changed[id] then
    save_job(id, job)
  end
  if moved[id] then
    redis.call('PEXPIREAT', in_flight_of(id), expiry(job.permits_until))
  end
  if redis.call('EXISTS', queued_of(id), in_flight_of(id)) == 0 then
    redis.call('SREM', BUSY, id)
  end
end
if #entries > 0 then
  redis.call('XACK', QUEUE, WORKERS, unpack(entries))
  redis.call('XDEL', QUEUE, unpack(entries))
end
announce(before)
return { generation }
