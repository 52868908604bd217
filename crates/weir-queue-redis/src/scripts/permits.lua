-- How permits are issued, by a run or without one.

local function read_limit()
  return { limit = number(), period = number(), burst = number() }
end

-- Paces one more permit; a warm one gets its slot, and the pace follows slots that were missed and replaced. A cold one takes
-- its slot a connect time later, which must not slow the pace of those behind it.
local function issue(job, warm)
  take_slot(job.issued, now)
  if not warm then
    return 0, 0
  end
  local slot_start, slot_end = take_near_slot(job, now)
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

-- Permits go into the delivery queue, or straight to the caller, who has them all to itself then. `version` is that of the job
-- when the destination was last seen to be neither paused nor deleted. Answers the serial of the first permit, and the starts
-- and ends of the slots.
local function issue_permits(id, job, version, deliveries, straight)
  local warm, queued, first, scored, slots = now < job.warm_until, queued_of(id), job.serial + 1, {}, {}
  local is_limited = #job.issued.lanes > 0
  local slot_start, slot_end, slot
  for index, delivery in ipairs(deliveries) do
    job.serial = job.serial + 1
    job.permits_until = math.max(job.permits_until, delivery.expires)
    scored[2 * index - 1], scored[2 * index] = delivery.score, permit_named(digits(job.serial))
    -- Without a limit every slot is the same.
    if index == 1 or is_limited then
      slot_start, slot_end = issue(job, warm)
      slot = straight and struct.pack('>i8i8', slot_start, slot_end)
    end
    if straight then
      slots[index] = slot
    else
      local permit = struct.pack('>i8i8i8i8i8i8', generation, version, job.serial, delivery.expires, slot_start, slot_end)
      redis.call('XADD', QUEUE, '*', 'permit', permit, 'delivery', delivery.payload)
    end
  end
  add_all(queued, scored)
  redis.call('PEXPIREAT', queued, expiry(job.permits_until))
  redis.call('SADD', BUSY, id)
  return first, table.concat(slots)
end

-- Most deliveries of a run expire together. The score is kept as it came, because to write a number costs more than the rest.
local last_score, last_expires

local function read_delivery(straight)
  local score = text()
  if score ~= last_score then
    last_score, last_expires = score, tonumber(score)
  end
  return { score = score, expires = last_expires, payload = not straight and text() }
end
