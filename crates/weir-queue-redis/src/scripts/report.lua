-- What workers did with their permits: started (queued → in flight) or ended (gone, used or not). A job that waits for room
-- runs. Each entry leaves the delivery queue with the first report of its permit. A report made twice changes nothing.
--
-- KEYS    the shard
-- ARGV    for each destination: its id, the generation of its permits; the serials of those that started; of those that started
--         and ended; of those that ended, having started before; the entries to remove
-- Answer  the generation

-- The shard's earliest due time before the first job was told to run; most reports tell none.
local before, told
-- Which of the permits are queued, each with its score before it, as ZADD takes them.
local function still_queued(queued, permits)
  local scored = {}
  if #permits > 0 then
    for index, expires in ipairs(redis.call('ZMSCORE', queued, unpack(permits))) do
      if expires then
        scored[#scored + 1] = expires
        scored[#scored + 1] = permits[index]
      end
    end
  end
  return scored
end

local function start(id, job, permits)
  local scored = still_queued(queued_of(id), permits)
  if #scored == 0 then
    return
  end
  redis.call('ZREM', queued_of(id), unpack(permits))
  redis.call('ZADD', in_flight_of(id), unpack(scored))
  redis.call('PEXPIREAT', in_flight_of(id), expiry(job.permits_until))
end

-- A send over a standing connection keeps the destination warm; a little later will do for those right behind it.
local function keep_warm(job)
  if now < job.warm_until and job.warm_until < now + WARM_FOR - WARM_STEP then
    job.warm_until = now + WARM_FOR
    return true
  end
end

-- Answers whether one of them had been there: in the first set, as a rule, and else in the other.
local function finish(permits, first, other)
  if #permits == 0 then
    return false
  end
  local removed = redis.call('ZREM', first, unpack(permits))
  if removed < #permits then
    removed = removed + redis.call('ZREM', other, unpack(permits))
  end
  return removed > 0
end

local function make_room(id, job)
  if job.phase == 'scheduled' and job.on_settle then
    if not told then
      before, told = earliest(), true
    end
    schedule(id, job, now, now, false)
    return true
  elseif job.phase == 'leased' and not job.settled then
    job.settled = true
    return true
  end
end

local function report(id, started, started_and_ended, ended)
  local job, queued, in_flight = load_job(id), queued_of(id), in_flight_of(id)
  start(id, job, started)
  local finished = finish(started_and_ended, queued, in_flight)
  finished = finish(ended, in_flight, queued) or finished
  local changed = #started + #started_and_ended > 0 and keep_warm(job)
  changed = finished and make_room(id, job) or changed
  if changed then
    save_job(id, job)
  end
  if redis.call('EXISTS', queued, in_flight) == 0 then
    redis.call('SREM', BUSY, id)
  end
end

local function permit()
  return permit_named(text())
end

while more() do
  local id, of = text(), number()
  local started, started_and_ended, ended, entries = list(permit), list(permit), list(permit), list(text)
  if of == generation then
    report(id, started, started_and_ended, ended)
    if #entries > 0 then
      redis.call('XACK', QUEUE, WORKERS, unpack(entries))
      redis.call('XDEL', QUEUE, unpack(entries))
    end
  end
end
if told then
  announce(before)
end
return { generation }
