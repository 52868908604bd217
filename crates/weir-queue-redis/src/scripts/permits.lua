-- Issues permits, by a run or without one.

-- The expected start of a slot behind those of `others` queued permits, if the last of them has its slot when it is expected.
function FLOWS.start_behind(job, others)
  local start = slot_after(job, others, now)
  if others > 0 then
    start = math.max(start, (job.last_expected or 0) + start - slot_after(job, others - 1, now))
  end
  return start
end

-- When the slot of the next permit of a group is expected. `own`: when the limits of its member allow the slot. Usually it is
-- the slot behind those of `others` queued permits. If `own` is later, or if the permit is to be `in_time`, it is `own`: until
-- then the other permits take the slots before.
function FLOWS.expected_at(group, own, others, in_time)
  local own_starts = {}
  for _, start in ipairs(group.own_starts or {}) do
    own_starts[#own_starts + 1] = start > now and start or nil
  end
  group.own_starts = own_starts
  local behind = FLOWS.start_behind(group, math.max(others - #own_starts, 0))
  if own > now and (in_time or own > behind) then
    own_starts[#own_starts + 1] = own
    return own
  end
  return behind
end

-- When the slot of the next permit of a member is expected, behind so many permits of the job and of each of its groups.
function FLOWS.expected(job, shared, others, others_in)
  local expected, in_time, waits_in = FLOWS.start_behind(job, others), job.in_time, { job }
  job.in_time = nil
  for which, group_id in ipairs(shared) do
    local group, own = groups[group_id], expected
    expected = FLOWS.expected_at(group, own, others_in[which], in_time)
    if expected ~= own then
      waits_in[#waits_in + 1] = group
    end
    in_time = in_time or group.in_time
  end
  for _, delayed in ipairs(waits_in) do
    delayed.last_expected = expected
  end
  return expected
end

-- The jobs that got permits in this call, and the groups that they share.
local busy, issued_in = {}, {}

-- Appends permits for the first `count` deliveries of a batch to the delivery queue. With `paced` each permit says when
-- its slot is expected, after the queued permits. Without it a worker asks for the slot as soon as it is ready.
local function issue_permits(id, job, batch, count, paced)
  local queued, scored = queued_of(id), {}
  -- The slots begin after those of the permits that are queued already.
  local others = paced and redis.call('ZCARD', queued) or 0
  local shared, others_in, names = FLOWS.shared_by(id, job), {}, {}
  for index, group in ipairs(shared) do
    others_in[index] = paced and redis.call('ZCARD', queued_of(group))
  end
  for index = 1, count do
    local delivery = batch[index]
    job.serial = job.serial + 1
    scored[2 * index - 1], scored[2 * index] = delivery.score, permit_named(digits(job.serial))
    -- The job is kept at least as long as its permits.
    job.permits_until = math.max(job.permits_until, delivery.expires)
    local expected = 0
    names[index] = shared[1] and scored[2 * index]
    if shared[1] and paced then
      expected = FLOWS.expected(job, shared, others + index - 1, others_in)
      for which in ipairs(shared) do
        others_in[which] = others_in[which] + 1
      end
    elseif paced then
      expected = slot_after(job, others + index - 1, now)
    end
    local permit = struct.pack('>i8i8i8i8i8', generation, job.serial, delivery.expires, expected, now)
    redis.call('XADD', QUEUE, '*', 'permit', permit, 'delivery', delivery.payload)
  end
  call_in_parts('ZADD', queued, scored)
  for index, name in ipairs(shared[1] and names_in_group(id, names) or {}) do
    scored[2 * index] = name
  end
  for _, group_id in ipairs(shared) do
    local group = groups[group_id]
    call_in_parts('ZADD', queued_of(group_id), scored)
    group.serial = group.serial + count
    group.permits_until = math.max(group.permits_until, job.permits_until)
    issued_in[group_id] = group
  end
  -- The set expires a little after its last permit.
  redis.call('PEXPIREAT', queued, expiry(job.permits_until))
  busy[#busy + 1] = id
end

-- What is left to do once for all permits of a call. Gauges and tidy.lua visit the destinations in BUSY.
local function end_issuing()
  for id, group in pairs(issued_in) do
    redis.call('PEXPIREAT', queued_of(id), expiry(group.permits_until))
  end
  call_in_parts('SADD', BUSY, busy)
end

-- The score stays text, because formatting a number costs more than the rest of the function.
local function read_delivery()
  local score = text()
  return { score = score, expires = tonumber(score), payload = text() }
end
