-- Periods: 1 to 4 for those with a name, or their number and the seconds of the window. Above SHAPED the limit has the
-- window shape: SHAPED and the seconds. A script of an earlier version reads that as an even limit over a day more.

local SHAPED = #WINDOW + 86400

local function is_window(limit)
  return limit.period > SHAPED
end

-- The length of the window.
local function window_of(period)
  return WINDOW[period] or (period > SHAPED and period - SHAPED or period - #WINDOW) * 1000000
end

-- The widest slot of a period: 1/600 of its window, within the bounds of the table.
local function widest_slot_of(period)
  return WIDEST_SLOT[period]
    or math.min(math.max(math.floor(window_of(period) / 600), WIDEST_SLOT[1]), WIDEST_SLOT[#WIDEST_SLOT])
end

-- The buckets of a ring: a 600th of window and margin.
local function bucket_of(limit)
  return math.ceil((window_of(limit.period) + (limit.margin or 0)) / BUCKETS)
end

-- The longest time that R spacings of a limit take, or that a slot counts in a ring.
local function longest_span(limit)
  return window_of(limit.period) + widest_slot_of(limit.period) + (limit.margin or 0) + bucket_of(limit)
end
