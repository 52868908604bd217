-- Claims due jobs, and jobs whose lease has ended, earliest due first.
--
-- KEYS    the shard
-- ARGV    the caller's time; how many at most, how long the leases last
-- Answer  the generation, the earliest remaining due time or nil, permits that no worker has read, the leases; each:
--         destination, epoch, version, due, permits queued and in flight, how long workers take to be ready, the
--         lowered maximum of outstanding permits or 0, since when no earlier permit gets a slot, the cursors or nil (last start
--         or nil, held until, the minimum interval or 0, and for each limit: limit, period, burst, margin, since, spent; for
--         each ring the same with until when it is kept or 0, and the usual cost or 0, and then the latest bucket that is free again, how
--         many buckets there are, and each with its slots); and of an adaptive destination its pace: state, not before,
--         spacing, window, generation, last start, granted, 1 when full, and the reports, each with its arrival

-- Drops permits whose claims have expired and counts the others. Expired permits would use up the destination's room
-- permanently.
local function count_valid(permits)
  redis.call('ZREMRANGEBYSCORE', permits, '-inf', now)
  return redis.call('ZCARD', permits)
end

-- How many permits end in the time of two runs and of the preparation, as measured since the last claim.
local function ended_meanwhile(job, outstanding)
  local ended = job.serial - outstanding
  local last = job.claimed or { now, ended }
  job.claimed = { now, ended }
  local time = job.preparation + 2 * (job.run_time or 0)
  local ahead = math.floor((ended - last[2]) * time / math.max(now - last[1], 1))
  return math.max(math.min(ahead, MOST_PERMITS_AHEAD * job.max_in_flight), 0)
end

local function cursors_of(limiter)
  if not limiter then
    return false
  end
  local parts = { limiter.last_start or false, limiter.held_until, limiter.interval or 0 }
  local function add(...)
    for _, part in ipairs({ ... }) do
      parts[#parts + 1] = part
    end
  end
  for _, cursor in ipairs(limiter.cursors) do
    local margin = cursor.margin or 0
    if not is_window(cursor) then
      add(cursor.limit, cursor.period, cursor.burst, margin, cursor.since, cursor.spent)
    end
    if is_window(cursor) or cursor.ring then
      trust_ring(limiter, cursor)
      local in_costs = is_in_costs(cursor)
      local code = (in_costs and COSTED or SHAPED) + window_of(cursor.period) / 1000000
      add(cursor.limit, code, 1, margin, cursor.ring_until or 0, in_costs and limiter.usual_cost or 0)
      add(cursor.ring[1], (#cursor.ring - RING_HEAD) / 2)
      each_bucket(cursor.ring, function(bucket, slots)
        add(bucket, slots)
      end)
    end
  end
  return parts
end

-- The pace with what was noted since the last run; the notes begin anew.
local function lend_pace(pace)
  local parts = {
    pace.state, pace.not_before, pace.spacing, pace.window, pace.generation, pace.last_start, pace.granted,
    pace.was_full and 1 or 0,
  }
  for _, report in ipairs(pace.reports or {}) do
    parts[#parts + 1], parts[#parts + 2] = report[1], report[2]
  end
  pace.granted, pace.was_full, pace.reports = 0, nil, nil
  return parts
end

local most, lease_for = number(), number()
local due = redis.call('ZRANGE', SCHEDULE, '-inf', now, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
local leases = {}
for index = 1, #due, 2 do
  local id = due[index]
  local job = load_job(id)
  -- A job without a floor may have been due for long, so it says nothing about the time of a run.
  job.run_since = job.phase == 'scheduled' and job.floor == job.due and job.due or nil
  -- A leased job stays in the schedule, at the end of its lease, so that it runs again if its scheduler dies.
  move_job(id, job, 'leased', now + lease_for)
  -- The new epoch makes a publication of an earlier lease stale. Wakes and settles from here on are those of this
  -- lease.
  job.epoch = job.epoch + 1
  job.woken, job.settled = nil, nil
  local queued, in_flight = count_valid(queued_of(id)), count_valid(in_flight_of(id))
  local ahead = ended_meanwhile(job, queued + in_flight)
  local pace = job.pace and lend_pace(job.pace)
  save_job(id, job)
  leases[#leases + 1] = {
    id, job.epoch, job.version, tonumber(due[index + 1]),
    queued, in_flight,
    job.preparation, job.run_time or 0, ahead, lowered_maximum(job) or 0,
    -- A job of an earlier version does not say it.
    job.known_since or now, cursors_of(job.cursors), pace,
  }
end
local unread = redis.call('XLEN', QUEUE) - redis.call('XPENDING', QUEUE, WORKERS)[1]
return { generation, earliest() or false, unread, leases }
