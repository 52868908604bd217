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

-- Permits go into the delivery queue, or straight to the caller, who has them all to itself then. `version` is that of the job
-- when the destination was last seen to be neither paused nor deleted. Answers the serial of the first permit, and the starts
-- and ends of the slots.
local function issue_permits(id, job, version, deliveries, straight)
  local warm, queued, first, slots = now < job.warm_until, queued_of(id), job.serial + 1, {}
  for index, delivery in ipairs(deliveries) do
    job.serial = job.serial + 1
    job.permits_until = math.max(job.permits_until, delivery.expires)
    redis.call('ZADD', queued, delivery.expires, digits(job.serial))
    local slot_start, slot_end = issue(job, warm)
    if straight then
      slots[index] = struct.pack('>i8i8', slot_start, slot_end)
    else
      local permit = struct.pack('>i8i8i8i8i8i8', generation, version, job.serial, delivery.expires, slot_start, slot_end)
      redis.call('XADD', QUEUE, '*', 'permit', permit, 'delivery', delivery.payload)
    end
  end
  redis.call('PEXPIREAT', queued, expiry(job.permits_until))
  redis.call('SADD', BUSY, id)
  return first, table.concat(slots)
end

local function read_delivery(straight)
  return { expires = number(), payload = not straight and text() }
end
