-- Issues permits, by a run or without one.

-- Members of a sorted set in one command, far fewer than Lua can unpack.
local MOST_MEMBERS = 500

local function add_all(set, scored)
  for from = 1, #scored, 2 * MOST_MEMBERS do
    redis.call('ZADD', set, unpack(scored, from, math.min(from + 2 * MOST_MEMBERS - 1, #scored)))
  end
end

-- Appends permits for the first `count` deliveries of a batch to the delivery queue. With `paced` each permit says when
-- its slot is expected, after the queued permits. Without it a worker asks for the slot as soon as it is ready.
local function issue_permits(id, job, batch, count, paced)
  local queued, scored = queued_of(id), {}
  -- The slots begin after those of the permits that are queued already.
  local others = paced and redis.call('ZCARD', queued) or 0
  local shared, others_in, names = FLOWS.shared_by(id, job), {}, {}
  for index, group in ipairs(shared) do
    others_in[index] = redis.call('ZCARD', queued_of(group))
  end
  for index = 1, count do
    local delivery = batch[index]
    job.serial = job.serial + 1
    scored[2 * index - 1], scored[2 * index] = delivery.score, permit_named(digits(job.serial))
    -- The job is kept at least as long as its permits.
    job.permits_until = math.max(job.permits_until, delivery.expires)
    local expected = paced and slot_after(job, others + index - 1, now) or 0
    names[index] = scored[2 * index]
    for which, group in ipairs(shared) do
      expected = math.max(expected, slot_after(groups[group], others_in[which] + index - 1, now))
    end
    local permit = struct.pack('>i8i8i8i8i8', generation, job.serial, delivery.expires, expected, now)
    redis.call('XADD', QUEUE, '*', 'permit', permit, 'delivery', delivery.payload)
  end
  add_all(queued, scored)
  for index, name in ipairs(shared[1] and names_in_group(id, names) or {}) do
    scored[2 * index] = name
  end
  for _, group_id in ipairs(shared) do
    local group = groups[group_id]
    add_all(queued_of(group_id), scored)
    group.serial = group.serial + count
    group.permits_until = math.max(group.permits_until, job.permits_until)
    redis.call('PEXPIREAT', queued_of(group_id), expiry(group.permits_until))
  end
  -- The set expires a little after its last permit. Gauges and tidy.lua visit the destinations in BUSY.
  redis.call('PEXPIREAT', queued, expiry(job.permits_until))
  redis.call('SADD', BUSY, id)
end

-- The score stays text, because formatting a number costs more than the rest of the function.
local function read_delivery()
  local score = text()
  return { score = score, expires = tonumber(score), payload = text() }
end
