-- Publishes deliveries without a run that were claimed as they were stored: as many as can be sent at once, to
-- destinations without a backlog.
--
-- KEYS    the shard
-- ARGV    the caller's time; the name of the caller, whose last call is remembered; a unique name of the call; 1 when
--         the call is repeated, else 0; then for each destination: its id, the version of its terms, a list of: when
--         the claim expires, the delivery
-- Answer  the generation in which the call ran; for each destination: permits issued, how many more there is room for,
--         from when more are admitted

local caller, name, repeated = text(), text(), number() == 1
local admitted_by = SHARD .. ':admitted:' .. caller
local REMEMBERED_MS = 600000

-- If the call has run, its answer was lost: the caller gets it again, and nothing is published twice.
if repeated then
  local last = read_packed(admitted_by)
  if last and last.name == name then
    return last.answer
  end
end

-- Whether the last run found less than it was allowed to claim, so that at most a few deliveries are waiting. A job
-- without cursors, or with other terms, needs a run first; members of a group take turns.
local function admits(job, version)
  return job.fast_path_ahead and job.cursors and job.terms_version == version and not job.suspended and not job.group
end

-- How many more permits may be issued. A run that is under way may publish its share of `max_in_flight`.
local function room_of(id, job)
  local most = most_outstanding(job)
  local outstanding = redis.call('ZCARD', queued_of(id)) + redis.call('ZCARD', in_flight_of(id))
  if job.phase == 'leased' then
    outstanding = outstanding + math.ceil(job.max_in_flight / SHARES)
  end
  return math.max(most - outstanding, 0)
end

-- Whether the workers are behind: permits that are issued now would be late.
local lagging = redis.call('XLEN', QUEUE) - redis.call('XPENDING', QUEUE, WORKERS)[1] > LAG_DEPTH

-- From when the next slot is near enough for one more permit.
local function admits_from(id, job)
  return slot_after(job, redis.call('ZCARD', queued_of(id)), now) - job.fast_path_ahead
end

-- With a limit one permit at a time, because only the next slot is free now. Without a limit as many as there is room
-- for.
local function most_at_once(id, job, room)
  if admits_from(id, job) > now then
    return 0
  end
  local is_unlimited = #job.cursors.cursors == 0 and not job.cursors.interval and not job.pace
  return is_unlimited and room or math.min(room, 1)
end

local function admit(id, version, batch)
  local job = load_job(id)
  -- A backlog, other terms, a suspended destination or workers that are behind: the deliveries wait for a run.
  if lagging or not admits(job, version) then
    return { 0, 0, 0 }
  end
  -- The first deliveries of the batch get the room. The others are declined.
  local room = room_of(id, job)
  local count = math.min(#batch, most_at_once(id, job, room))
  if count > 0 then
    issue_permits(id, job, batch, count, false)
    save_job(id, job)
  end
  return { count, room - count, admits_from(id, job) }
end

local answer = { generation }
while more() do
  local id, version = text(), number()
  answer[#answer + 1] = admit(id, version, list(read_delivery))
end
end_issuing()
-- For ten minutes: the caller repeats a call only while its claims last, and they do not last as long.
redis.call('SET', admitted_by, cmsgpack.pack({ name = name, answer = answer }), 'PX', REMEMBERED_MS)
return answer
