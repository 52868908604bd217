-- Limits of the window shape, as in `weir_core::limiter::Ring`. A ring counts the slots of the last window in buckets.
-- It is the field `ring` of a cursor, a list:
--   1  released
--   2  slots in all buckets
--   3  the oldest bucket
--   4  the newest bucket
--   5  the last start that it counts; with a minus if the limit is in costs
--   6… two numbers for each bucket that is not empty: the distance from the bucket before, and its slots
-- The other fields of the cursor are limit, period, burst, margin, since (the last start) and spent. An edit from the window
-- shape to an even limit keeps the ring until `ring_until`.
-- A script of an earlier version counts a send as 1 and writes the last start without a minus. Then the ring counts as
-- full.

local RING_HEAD = 5

-- How wide slots are. They overlap, so no wider than without a limit.
local function ring_slot(limit)
  return math.min(widest_slot_of(limit.period), UNLIMITED_SLOT_WIDTH)
end

-- When the slots of a bucket are free again.
local function release_of(cursor, bucket)
  return bucket * bucket_of(cursor) + window_of(cursor.period) + (cursor.margin or 0)
end

local count_in, uncount_in
do
  -- The index and the bucket of the newest pair that is not after `bucket`, and the bucket after it. The index is below
  -- the first pair if there is none. Few buckets are newer, and mostly none.
  local function seek(ring, bucket)
    local index, found, after = #ring - 1, ring[4], nil
    while index > RING_HEAD and found > bucket do
      index, found, after = index - 2, found - ring[index], found
    end
    return index, found, after
  end

  -- Counts slots in a bucket.
  function count_in(ring, bucket, slots)
    if slots == 0 then
      return
    end
    ring[2] = ring[2] + slots
    local index, found, after = seek(ring, bucket)
    if index > RING_HEAD and found == bucket then
      ring[index + 1] = ring[index + 1] + slots
      return
    end
    local distance = index > RING_HEAD and bucket - found or 0
    table.insert(ring, index + 2, slots)
    table.insert(ring, index + 2, distance)
    if index < RING_HEAD then
      ring[3] = bucket
    end
    if after then
      ring[index + 4] = after - bucket
    else
      ring[4] = bucket
    end
  end

  -- Counts so many slots less in a bucket.
  function uncount_in(ring, bucket, slots)
    local index, found, after = seek(ring, bucket)
    if index < RING_HEAD or found ~= bucket then
      return
    end
    ring[2], ring[index + 1] = ring[2] - slots, ring[index + 1] - slots
    if ring[index + 1] > 0 then
      return
    end
    local is_oldest, before = index == RING_HEAD + 1, found - ring[index]
    table.remove(ring, index)
    table.remove(ring, index)
    if not after then
      ring[4] = before
    elseif is_oldest then
      ring[3], ring[index] = after, 0
    else
      ring[index] = after - before
    end
  end
end

-- Counts slots that end at this time.
local function count_slots(cursor, slot_end, slots)
  count_in(cursor.ring, math.ceil(slot_end / bucket_of(cursor)), slots)
end

-- How the ring of a cursor names the last start.
local function mark_of(cursor, last_start)
  return is_in_costs(cursor) and -last_start or last_start
end

-- A ring after the last start, if there was one: all slots of the window may have started then.
local function full_ring(cursor, last_start)
  cursor.since, cursor.spent = last_start or 0, last_start and 1 or 0
  cursor.ring = { 0, 0, 0, 0, mark_of(cursor, cursor.since) }
  if last_start then
    count_in(cursor.ring, math.floor(last_start / bucket_of(cursor)) + 1, cursor.limit)
  end
end

-- A script of an earlier version has moved the cursor: it counts as many slots as there may be.
local function trust_ring(limiter, cursor)
  if is_window(cursor) and (not cursor.ring or cursor.ring[5] ~= mark_of(cursor, cursor.since)) then
    full_ring(cursor, math.max(cursor.since, limiter.last_start or 0))
  end
end

-- Calls `visit` with each bucket, the oldest first, and its slots, until it returns true.
local function each_bucket(ring, visit)
  local bucket = ring[3]
  for index = RING_HEAD + 1, #ring, 2 do
    bucket = bucket + ring[index]
    if visit(bucket, ring[index + 1], index) then
      return
    end
  end
end

-- The earliest start of a slot after `others` further slots, of which none starts before `from`; 0 when nothing was sent.
local function earliest_in_ring(cursor, others, from)
  local ring = cursor.ring
  local windows = math.floor(others / cursor.limit)
  local needed = ring[2] + others % cursor.limit + 1 - cursor.limit
  local start = ring[1] > 0 and release_of(cursor, ring[1]) or 0
  if needed > 0 then
    local last
    each_bucket(ring, function(bucket, slots)
      needed, last = needed - slots, bucket
      return needed <= 0
    end)
    start = math.max(start, release_of(cursor, last))
  end
  return windows == 0 and start or math.max(start, from) + windows * (window_of(cursor.period) + ring_slot(cursor) + (cursor.margin or 0) + bucket_of(cursor))
end

-- The earliest start of a slot of this cost, before which `reserved` more are left for another one. Never, if the cost is
-- above the limit.
local function earliest_of_cost(cursor, cost, reserved, from)
  if not is_in_costs(cursor) then
    return earliest_in_ring(cursor, 0, from)
  elseif cost > cursor.limit then
    return math.huge
  end
  local start = earliest_in_ring(cursor, cost - 1, from)
  return reserved > 0 and math.max(start, earliest_in_ring(cursor, reserved + cost - 1, from)) or start
end

-- Counts a slot. Buckets that are free again are dropped first.
local function take_in_ring(cursor, slot_start, slot_end, cost)
  local ring = cursor.ring
  local first, oldest = #ring + 1, ring[4]
  each_bucket(ring, function(bucket, slots, index)
    if release_of(cursor, bucket) > slot_start then
      first, oldest = index, bucket
      return true
    end
    ring[1], ring[2] = math.max(ring[1], bucket), ring[2] - slots
  end)
  if first > RING_HEAD + 1 then
    local kept = { ring[1], ring[2], oldest, ring[4], ring[5] }
    for index = first, #ring do
      kept[#kept + 1] = ring[index]
    end
    -- No distance before the oldest one.
    if kept[RING_HEAD + 1] then
      kept[RING_HEAD + 1] = 0
    end
    cursor.ring = kept
  end
  count_slots(cursor, slot_end, taken_by(cursor, cost))
  cursor.ring[5] = mark_of(cursor, slot_start)
end

-- Takes the last slot back, which ended at this time.
local function uncount_slot(cursor, slot_end, cost)
  uncount_in(cursor.ring, math.ceil(slot_end / bucket_of(cursor)), taken_by(cursor, cost))
  cursor.ring[5] = mark_of(cursor, cursor.since)
end

-- The slots of another cursor's ring.
local function count_from(cursor, other)
  local step = bucket_of(other)
  each_bucket(other.ring, function(bucket, slots)
    count_slots(cursor, bucket * step, slots)
  end)
  cursor.ring[1] = math.ceil(other.ring[1] * step / bucket_of(cursor))
end

-- The slots of an even limit up to the end of the last one: `most` in a window, of which none came closer than `every`,
-- and its burst; and what it owes.
local function count_even(cursor, burst, most, every, owed, last_end)
  local step = bucket_of(cursor)
  local buckets = math.ceil((window_of(cursor.period) + ring_slot(cursor) + (cursor.margin or 0)) / step)
  local function younger(age)
    return math.min(math.floor(age / every) + 1, most)
  end
  for age = buckets - 1, 0, -1 do
    count_slots(cursor, last_end - age * step, younger((age + 1) * step) - (age > 0 and younger(age * step) or 0))
  end
  count_slots(cursor, last_end, burst - 1)
  if owed > 0 then
    local after = owed - window_of(cursor.period) - (cursor.margin or 0)
    cursor.ring[1] = math.max(math.ceil(after / step), 0)
  end
end
