-- Slots and cursors: `weir_core::Limiter` in whole microseconds. The spacing is rounded up, so the guarantee holds as it does
-- there. A limiter is { lanes = { { limit, period, burst, cursor }… }, last_start = time or nil, held_until = time }.

-- Exact: a quotient that is not whole differs from one by at least 1 / limit, far more than a double's error.
local function spacing(lane)
  return math.ceil(SPAN[lane.period] / lane.limit)
end

local function spent_lane(limit, last_start)
  local lane = { limit = limit.limit, period = limit.period, burst = limit.burst, cursor = 0 }
  if last_start then
    lane.cursor = last_start + spacing(lane) * limit.burst
  end
  return lane
end

local function recovered_limiter(limits, last_start)
  local lanes = {}
  for index, limit in ipairs(limits) do
    lanes[index] = spent_lane(limit, last_start)
  end
  return { lanes = lanes, last_start = last_start, held_until = 0 }
end

local function same_limit(one, other)
  return one.limit == other.limit and one.period == other.period and one.burst == other.burst
end

local function follows(limiter, limits)
  if #limiter.lanes ~= #limits then
    return false
  end
  for index, limit in ipairs(limits) do
    if not same_limit(limiter.lanes[index], limit) then
      return false
    end
  end
  return true
end

local function hold_limiter(limiter, till)
  limiter.held_until = math.max(limiter.held_until, till)
end

local function next_start(limiter, at)
  local start = math.max(at, limiter.held_until)
  for _, lane in ipairs(limiter.lanes) do
    start = math.max(start, lane.cursor - spacing(lane) * (lane.burst - 1))
  end
  return start
end

-- Hands out the next slot: its start and its end.
local function take_slot(limiter, at)
  local start = next_start(limiter, at)
  local width
  for _, lane in ipairs(limiter.lanes) do
    lane.cursor = math.max(lane.cursor, start) + spacing(lane)
    width = math.min(width or SLOT_WIDTH[lane.period], SLOT_WIDTH[lane.period])
  end
  limiter.last_start = math.max(limiter.last_start or 0, start)
  return start, start + (width or UNLIMITED_SLOT_WIDTH)
end

-- As if the slot that was handed out last had not been, and (a number of slots above 0) as if it had been after all.
local function move_cursors(limiter, slots)
  for _, lane in ipairs(limiter.lanes) do
    lane.cursor = lane.cursor + spacing(lane) * slots
  end
end

-- Moves every cursor at least as far as the other's. Both follow the same limits.
local function catch_up(limiter, other)
  for index, lane in ipairs(limiter.lanes) do
    lane.cursor = math.max(lane.cursor, other.lanes[index].cursor)
  end
  limiter.last_start = math.max(limiter.last_start or 0, other.last_start or 0)
  hold_limiter(limiter, other.held_until)
end

-- The next slot of a job, unless it lies beyond the horizon: then no cursor moves but the pace, which has run ahead of the
-- slots, and the next permit is published when its slot is near.
local function take_near_slot(job, permit, at)
  if next_start(job.slots, at) > at + SLOT_HORIZON then
    catch_up(job.issued, job.slots)
    return nil
  end
  job.last_taker = #job.slots.lanes > 0 and permit or nil
  return take_slot(job.slots, at)
end

-- The slot that a permit was given stays unused. If it is the last, it is as if it had not been; but only if the next can be taken
-- in its place.
local function give_back(job, permit, at)
  if job.last_taker ~= permit then
    return
  end
  move_cursors(job.slots, -1)
  if next_start(job.slots, at) > at + SLOT_HORIZON then
    move_cursors(job.slots, 1)
  end
end

-- When the job of a backlog runs next: a little before its next slot.
local function paced_due(limiter, at)
  return math.max(next_start(limiter, at) - LEAD, at + CADENCE)
end

-- The debt in sends since the last start, at the new spacing. The product passes 2^53, so one more microsecond makes up for
-- what the division may lose.
local function rescaled_lane(limit, lane, last_start)
  local edited = spent_lane(limit, nil)
  local debt = math.max(0, lane.cursor - last_start)
  edited.cursor = last_start + math.ceil(debt * spacing(edited) / spacing(lane)) + 1
  return edited
end

local function lane_of_period(limiter, period)
  for _, lane in ipairs(limiter.lanes) do
    if lane.period == period then
      return lane
    end
  end
end

-- Follows new limits without resetting any window.
local function reconfigure(limiter, limits)
  if follows(limiter, limits) then
    return
  end
  local lanes = {}
  for index, limit in ipairs(limits) do
    local lane = lane_of_period(limiter, limit.period)
    if lane and same_limit(lane, limit) then
      lanes[index] = lane
    elseif lane and limiter.last_start then
      lanes[index] = rescaled_lane(limit, lane, limiter.last_start)
    else
      lanes[index] = spent_lane(limit, limiter.last_start)
    end
  end
  limiter.lanes = lanes
end
