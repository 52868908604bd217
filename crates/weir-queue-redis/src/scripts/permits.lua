-- How permits are issued, by a run or without one.

local function read_limit()
  return { limit = number(), period = number(), burst = number() }
end

-- Paces one more permit; a warm one gets its slot, and the pace follows slots that were missed and replaced. A cold one takes
-- its slot a connect time later, which must not slow the pace of those behind it.
local function issue(job, permit, warm)
  take_slot(job.issued, now)
  if not warm then
    return 0, 0
  end
  local slot_start, slot_end = take_near_slot(job, permit, now)
  catch_up(job.issued, job.slots)
  return slot_start or 0, slot_end or 0
end

-- Members of a sorted set that go in one command: what Lua can unpack, by far.
local MOST_MEMBERS = 500

local function add_all(set, scored)
  for from = 1, #scored, 2 * MOST_MEMBERS do
    redis.call('ZADD', set, unpack(scored, from, math.min(from + 2 * MOST_MEMBERS - 1, #scored)))
  end
end

-- Permits for the first `count` of a batch go into the delivery queue, or straight to the caller, who has them all to itself then.
-- `version` is that of the job when the destination was last seen to be neither paused nor deleted. Answers the serial of the
-- first permit, and the starts and ends of the slots.
local function issue_permits(id, job, version, batch, count, straight)
  local warm, queued, first, scored, slots = now < job.warm_until, queued_of(id), job.serial + 1, {}, {}
  local is_limited = #job.issued.lanes > 0
  local slot_start, slot_end, slot
  local serial = job.serial
  for index = 1, count do
    serial = serial + 1
    scored[2 * index - 1], scored[2 * index] = batch.score or batch[index].score, permit_named(digits(serial))
    -- Without a limit every slot is the same.
    if index == 1 or is_limited then
      slot_start, slot_end = issue(job, serial, warm)
      slot = straight and struct.pack('>i8i8', slot_start, slot_end)
    end
    if straight then
      slots[index] = slot
    else
      local delivery = batch[index]
      job.permits_until = math.max(job.permits_until, delivery.expires)
      local permit = struct.pack('>i8i8i8i8i8i8', generation, version, serial, delivery.expires, slot_start, slot_end)
      redis.call('XADD', QUEUE, '*', 'permit', permit, 'delivery', delivery.payload)
    end
  end
  job.serial = serial
  job.permits_until = math.max(job.permits_until, batch.expires or 0)
  add_all(queued, scored)
  redis.call('PEXPIREAT', queued, expiry(job.permits_until))
  redis.call('SADD', BUSY, id)
  return first, table.concat(slots)
end

local function read_delivery()
  local score = text()
  return { score = score, expires = tonumber(score), payload = text() }
end

-- What a caller keeps for itself is a number, and when the last of the claims expires: that a lost permit counts for a little longer
-- than its claim lasts costs less than to name each. The score is kept as it came, because to write a number costs more than
-- the rest.
local function read_batch(straight)
  if not straight then
    local batch = list(read_delivery)
    batch.count = #batch
    return batch
  end
  local count, score = number(), text()
  return { count = count, score = score, expires = tonumber(score) }
end
