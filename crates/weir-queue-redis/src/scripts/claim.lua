-- Claims due jobs, and jobs whose lease has ended, earliest due first.
--
-- KEYS    the shard
-- ARGV    the caller's time; how many at most, how long the leases last
-- Answer  the generation, the earliest due time that remains or nil, permits that no worker has read, the leases; each:
--         destination, epoch, version, due, permits queued and in flight, how long workers take to stand ready, a bound on what
--         may be out or 0, the cursors or nil (last start or nil, held until, and for each limit: limit, period, burst, since,
--         spent)

-- Permits whose claims have expired are nobody's any more; counting them would leak the destination's room.
local function still_good(permits)
  redis.call('ZREMRANGEBYSCORE', permits, '-inf', now)
  return redis.call('ZCARD', permits)
end

local function shown(limiter)
  if not limiter then
    return false
  end
  local parts = { limiter.last_start or false, limiter.held_until }
  for _, cursor in ipairs(limiter.cursors) do
    for _, part in ipairs({ cursor.limit, cursor.period, cursor.burst, cursor.since, cursor.spent }) do
      parts[#parts + 1] = part
    end
  end
  return parts
end

local most, lease_for = number(), number()
local due = redis.call('ZRANGE', SCHEDULE, '-inf', now, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
local leases = {}
for index = 1, #due, 2 do
  local id = due[index]
  local job = load_job(id)
  move_job(id, job, 'leased', now + lease_for)
  job.epoch = job.epoch + 1
  job.woken, job.settled = nil, nil
  save_job(id, job)
  leases[#leases + 1] = {
    id, job.epoch, job.version, tonumber(due[index + 1]),
    still_good(queued_of(id)), still_good(in_flight_of(id)),
    job.preparation, job.window or 0, shown(job.cursors),
  }
end
local unread = redis.call('XLEN', QUEUE) - redis.call('XPENDING', QUEUE, WORKERS)[1]
return { generation, earliest() or false, unread, leases }
