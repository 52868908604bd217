-- Publishes deliveries that were claimed as they were stored, without a run: as many as can be sent at once, to destinations
-- without a backlog.
--
-- KEYS    the shard
-- ARGV    1 when the caller takes the permits, 0 when they go into the delivery queue; a name for the caller, of which each call
--         forgets the one before; a name that no other call has; 1 when the call is a repetition; then for each destination:
--         its id, how many permits may be out, limits as a list of: limit, period, burst, and deliveries as in publish.lua
-- Answer  the generation, that of the call which ran; for each destination: permits issued, the serial of the first, their
--         slots (start and end, packed) when the caller takes them, the job's version, how many more there is room for, from
--         when the next slot is near enough

local straight, caller, name, repeated = number() == 1, text(), text(), number() == 1
local admitted_by = SHARD .. ':admitted:' .. caller
local REMEMBERED_MS = 600000

if repeated then
  local last = redis.call('GET', admitted_by)
  last = last and cmsgpack.unpack(last)
  if last and last.name == name then
    return last.answer
  end
end

-- The last run found less than it was allowed to take, so at most a handful waits. A job whose cursors are not known, or follow
-- other limits, needs a run first.
local function is_open(job, limits)
  return job.express_ahead and job.slots and follows(job.issued, limits) and not job.suspended_at
end

-- A run that is under way may publish its share of what may be out.
local function room_of(id, job, most)
  local out = redis.call('ZCARD', queued_of(id)) + redis.call('ZCARD', in_flight_of(id))
  if job.phase == 'leased' then
    out = out + math.ceil(most / SHARES)
  end
  return math.max(most - out, 0)
end

-- The workers are behind: what is issued now would be late.
local lagging = not straight and redis.call('XLEN', QUEUE) - redis.call('XPENDING', QUEUE, WORKERS)[1] > LAG_DEPTH

local function next_free(job)
  return math.max(next_start(job.issued, now), next_start(job.slots, now))
end

-- From when a slot is near enough.
local function open_from(job)
  return next_free(job) - job.express_ahead
end

-- Under a limit one at a time: the next slot of an idle destination is free now, the one after it is not, unless it may burst.
local function most_at_once(job, room)
  if open_from(job) > now then
    return 0
  end
  return #job.issued.lanes == 0 and room or math.min(room, 1)
end

local function admit(id, most, limits, batch)
  local job = load_job(id)
  if lagging or not is_open(job, limits) then
    return { 0, 0, '', 0, 0, 0 }
  end
  local room = room_of(id, job, most)
  local count, first, slots = math.min(batch.count, most_at_once(job, room)), 0, ''
  if count > 0 then
    first, slots = issue_permits(id, job, job.version, batch, count, straight)
    save_job(id, job)
  end
  return { count, first, slots, job.version, room - count, open_from(job) }
end

local answer = { generation }
while more() do
  local id, most, limits = text(), number(), list(read_limit)
  answer[#answer + 1] = admit(id, most, limits, read_batch(straight))
end
if not straight then
  redis.call('SET', admitted_by, cmsgpack.pack({ name = name, answer = answer }), 'PX', REMEMBERED_MS)
end
return answer
