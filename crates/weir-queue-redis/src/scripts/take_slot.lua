-- The one way to send: a slot for each permit whose worker stands ready. One step looks at everything that decides, moves the
-- cursors, and marks the permit in flight.
--
-- KEYS    the shard
-- ARGV    the caller's time; from when the caller can use a slot, 0: at once; then for each permit, named once: its destination, its
--         serial, how long its worker took to stand ready, or -1 when that was told before
-- Answer  the generation, and for each permit two times: start and end of its slot; or when its slot starts, and 0, when that is
--         too far ahead; or 0 and 0, when it is withdrawn

local usable_from = math.min(math.max(now, number()), now + GRANT_AHEAD)

-- Up at once, down by an eighth each time.
local function blended(known, new)
  new = math.min(new, LONGEST_PREPARATION)
  return new >= known and new or known - math.floor((known - new) / 8)
end

-- The requests of each destination, in their order: each set of permits is read and written once for all of them.
local function read_requests()
  local destinations, by_id, count = {}, {}, 0
  while more() do
    local id, permit, preparation = text(), permit_named(text()), number()
    local asked = by_id[id]
    if not asked then
      asked = { id = id, permits = {}, preparations = {}, places = {} }
      by_id[id] = asked
      destinations[#destinations + 1] = asked
    end
    count = count + 1
    local next_one = #asked.permits + 1
    asked.permits[next_one], asked.preparations[next_one], asked.places[next_one] = permit, preparation, count
  end
  return destinations
end

-- When the claims of permits expire that have no slot yet, and of those that have one; false for what is not there.
local function expiries(asked)
  local waiting = redis.call('ZMSCORE', queued_of(asked.id), unpack(asked.permits))
  local flying
  for index = 1, #asked.permits do
    if not waiting[index] then
      flying = flying or redis.call('ZMSCORE', in_flight_of(asked.id), unpack(asked.permits))
    end
  end
  return waiting, flying or {}
end

local function put_in_flight(id, job, permits, scored)
  redis.call('ZREM', queued_of(id), unpack(permits))
  redis.call('ZADD', in_flight_of(id), unpack(scored))
  redis.call('PEXPIREAT', in_flight_of(id), expiry(job.permits_until))
end

-- Start and end of the slot, or when it starts and 0, or 0 and 0.
local function take(job)
  local start = next_start(job.cursors, usable_from)
  if start > now + SLOT_HORIZON then
    return 0, 0
  elseif start > now + GRANT_AHEAD then
    return start, 0
  end
  return take_slot(job.cursors, usable_from)
end

local answer = { generation }

local function grant_all(asked)
  local id = asked.id
  local job = load_job(id)
  local waiting, flying = expiries(asked)
  local most = math.min(job.max_in_flight, job.window or job.max_in_flight)
  local out = redis.call('ZCARD', in_flight_of(id))
  local granted, scored = {}, {}
  for index, permit in ipairs(asked.permits) do
    local waits = waiting[index]
    local expires = tonumber(waits or flying[index] or 0)
    local slot_start, slot_end = 0, 0
    if expires > now and not job.suspended and job.cursors and not (waits and out >= most) then
      if asked.preparations[index] >= 0 then
        job.preparation = blended(job.preparation, asked.preparations[index])
      end
      slot_start, slot_end = take(job)
      if waits and slot_end > 0 then
        out = out + 1
        granted[#granted + 1] = permit
        scored[#scored + 1] = waits
        scored[#scored + 1] = permit
      end
    end
    local place = 2 * asked.places[index]
    answer[place], answer[place + 1] = slot_start, slot_end
  end
  if #granted > 0 then
    put_in_flight(id, job, granted, scored)
  end
  save_job(id, job)
end

for _, asked in ipairs(read_requests()) do
  grant_all(asked)
end
return answer
