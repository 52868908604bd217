-- Periods: 1 to 4 for those with a name, or their number and the seconds of the window. Above SHAPED the limit has the
-- window shape: SHAPED and the seconds. A script of an earlier version reads that as an even limit over a day more. Above
-- COSTED the limit has this shape and is in costs; an earlier version reads that as a window longer by a day.

local SHAPED = #WINDOW + 86400
local COSTED = 2 * SHAPED

local function is_window(limit)
  return limit.period > SHAPED
end

local function is_in_costs(limit)
  return limit.period > COSTED
end

-- How much of the limit a send takes whose event has this cost.
local function taken_by(limit, cost)
  return is_in_costs(limit) and cost or 1
end

-- The length of the window.
local function window_of(period)
  local base = period > COSTED and COSTED or period > SHAPED and SHAPED or #WINDOW
  return WINDOW[period] or (period - base) * 1000000
end

-- The widest slot of a period: 1/600 of its window, within the bounds of the table.
local function widest_slot_of(period)
  return WIDEST_SLOT[period]
    or math.min(math.max(math.floor(window_of(period) / 600), WIDEST_SLOT[1]), WIDEST_SLOT[#WIDEST_SLOT])
end

-- The buckets of a ring: a 600th of window and margin.
local function bucket_of(limit)
  return math.ceil((window_of(limit.period) + (limit.margin or 0)) / RINGS.BUCKETS)
end

-- The longest time that R spacings of a limit take, or that a slot counts in a ring.
local function longest_span(limit)
  return window_of(limit.period) + widest_slot_of(limit.period) + (limit.margin or 0) + bucket_of(limit)
end
