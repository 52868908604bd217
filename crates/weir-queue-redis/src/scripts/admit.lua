-- Publishes deliveries that were claimed as they were stored, without a run: as many as can be sent at once, to destinations
-- without a backlog.
--
-- KEYS    the shard
-- ARGV    the caller's time; a name for the caller, of which each call forgets the one before; a name that no other call has; 1 when
--         the call is a repetition; then for each destination: its id, the version of its terms, and a list of: when the claim
--         expires, and the delivery
-- Answer  the generation, that of the call which ran; for each destination: permits issued, how many more there is room for, from
--         when the next slot is near enough

local caller, name, repeated = text(), text(), number() == 1
local admitted_by = SHARD .. ':admitted:' .. caller
local REMEMBERED_MS = 600000

if repeated then
  local last = redis.call('GET', admitted_by)
  last = last and cmsgpack.unpack(last)
  if last and last.name == name then
    return last.answer
  end
end

-- The last run found less than it was allowed to take, so at most a handful waits. A job whose cursors are not known, or that
-- follows other terms, needs a run first.
local function is_open(job, version)
  return job.fast_path_ahead and job.cursors and job.terms_version == version and not job.suspended
end

-- A run that is under way may publish its share of what may be out.
local function room_of(id, job)
  local most = math.min(job.max_in_flight, job.window or job.max_in_flight)
  local out = redis.call('ZCARD', queued_of(id)) + redis.call('ZCARD', in_flight_of(id))
  if job.phase == 'leased' then
    out = out + math.ceil(job.max_in_flight / SHARES)
  end
  return math.max(most - out, 0)
end

-- The workers are behind: what is issued now would be late.
local lagging = redis.call('XLEN', QUEUE) - redis.call('XPENDING', QUEUE, WORKERS)[1] > LAG_DEPTH

-- From when a slot is near enough for one more.
local function open_from(id, job)
  return start_after(job.cursors, redis.call('ZCARD', queued_of(id)), now) - job.fast_path_ahead
end

-- Under a limit one at a time: the next slot of an idle destination is free now, the one after it is not, unless it may burst.
local function most_at_once(id, job, room)
  if open_from(id, job) > now then
    return 0
  end
  return #job.cursors.cursors == 0 and room or math.min(room, 1)
end

local function admit(id, version, batch)
  local job = load_job(id)
  if lagging or not is_open(job, version) then
    return { 0, 0, 0 }
  end
  local room = room_of(id, job)
  local count = math.min(#batch, most_at_once(id, job, room))
  if count > 0 then
    issue_permits(id, job, batch, count, false)
    save_job(id, job)
  end
  return { count, room - count, open_from(id, job) }
end

local answer = { generation }
while more() do
  local id, version = text(), number()
  answer[#answer + 1] = admit(id, version, list(read_delivery))
end
redis.call('SET', admitted_by, cmsgpack.pack({ name = name, answer = answer }), 'PX', REMEMBERED_MS)
return answer
