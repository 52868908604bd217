-- The one way to send: a slot for each permit whose worker stands ready. One step looks at everything that decides, moves the
-- cursors, and marks the permit in flight.
--
-- KEYS    the shard
-- ARGV    the caller's time; from when the caller can use a slot, 0: at once; then for each permit: its destination, its serial, how long its worker took to stand ready, or -1 when
--         that was told before
-- Answer  the generation, and for each permit two times: start and end of its slot; or when its slot starts, and 0, when that is
--         too far ahead; or 0 and 0, when it is withdrawn

local jobs = {}
local usable_from = math.min(math.max(now, number()), now + GRANT_AHEAD)

local function job_named(id)
  if not jobs[id] then
    jobs[id] = load_job(id)
  end
  return jobs[id]
end

-- Up at once, down by an eighth each time.
local function blended(known, new)
  new = math.min(new, LONGEST_PREPARATION)
  return new >= known and new or known - math.floor((known - new) / 8)
end

local function grant(id, permit, preparation)
  local job, queued, in_flight = job_named(id), queued_of(id), in_flight_of(id)
  local waits = redis.call('ZSCORE', queued, permit)
  local expires = tonumber(waits or redis.call('ZSCORE', in_flight, permit) or 0)
  if expires <= now or job.suspended or not job.cursors then
    return 0, 0
  end
  local most = math.min(job.max_in_flight, job.window or job.max_in_flight)
  if waits and redis.call('ZCARD', in_flight) >= most then
    return 0, 0
  end
  if preparation >= 0 then
    job.preparation = blended(job.preparation, preparation)
  end
  local start = next_start(job.cursors, usable_from)
  if start > now + SLOT_HORIZON then
    return 0, 0
  elseif start > now + GRANT_AHEAD then
    return start, 0
  end
  if waits then
    redis.call('ZREM', queued, permit)
    redis.call('ZADD', in_flight, waits, permit)
    redis.call('PEXPIREAT', in_flight, expiry(job.permits_until))
  end
  return take_slot(job.cursors, usable_from)
end

local answer = { generation }
while more() do
  local id, permit, preparation = text(), permit_named(text()), number()
  local slot_start, slot_end = grant(id, permit, preparation)
  answer[#answer + 1] = slot_start
  answer[#answer + 1] = slot_end
end
for id, job in pairs(jobs) do
  save_job(id, job)
end
return answer
