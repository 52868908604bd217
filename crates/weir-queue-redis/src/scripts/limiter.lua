-- Slots and cursors: `weir_core::Limiter` in whole microseconds. The spacing is rounded up, so the guarantee holds. The
-- fields of a limiter:
--   cursors     for each limit { limit, period, burst, margin, since, spent }; one of an earlier version has no margin; a
--               cursor may have a ring (ring.lua)
--   interval    the minimum interval, or nil
--   last_start  the start of the last slot, or nil
--   wide_end    the latest end of a slot that was wider than usual, or nil
--   is_wide     true if the last slot was made wider for a caller
--   last_take   what gives the last slot back: { its start, last_start before it or false, for each cursor since and spent
--               before it, and its end }, or nil
--   held_until  no slot starts before this time
--   dormant     cursors with rings of limits of the window shape that are not in force any more, each until its `ring_until`, or
--               nil: they do not bind, and count what is sent. `since` is the last start, as in the limiter
-- If a limit is in costs, also:
--   last_cost   the cost of the last slot
--   usual_cost  the mean cost of the last sends, in parts of COST_OF_ONE
--   waiting     { the highest cost that waits for room, from when and until when nothing cheaper overtakes it }, or nil
--
-- Limits are a list of { limit, period, burst, margin } with a field `interval`: the minimum interval or nil.

-- Exact: a quotient that is not an integer differs from every integer by at least 1 / limit, far more than a double's
-- error.
local function spacing_with(limit, width)
  return math.ceil((window_of(limit.period) + width + (limit.margin or 0)) / limit.limit)
end

local slot_width, spacing
do
  -- Both by limit or cursor: they do not change, and each slot needs them several times. The cursors of the keys of a
  -- destination are many, and under the same limits.
  local widths, spacings, alike = {}, {}, {}

  local function measure(limit)
    local margin = limit.margin or 0
    local of = alike[limit.limit]
    if not of or of.period ~= limit.period or of.burst ~= limit.burst or of.margin ~= margin then
      local width
      if limit.period > SHAPED then
        width = ring_slot(limit)
      else
        local widest = widest_slot_of(limit.period)
        local is_apart = limit.burst == 1 and spacing_with(limit, widest) >= widest
        width = is_apart and widest or NARROW_SLOT
      end
      of = { period = limit.period, burst = limit.burst, margin = margin, width = width, spacing = spacing_with(limit, width) }
      alike[limit.limit] = of
    end
    widths[limit], spacings[limit] = of.width, of.spacing
    return of
  end

  function slot_width(limit)
    return widths[limit] or measure(limit).width
  end

  function spacing(limit)
    return spacings[limit] or measure(limit).spacing
  end
end

-- A cursor after the last send, if there was one: then the burst counts as spent.
local function cursor_after(limit, last_start)
  local cursor = {
    limit = limit.limit, period = limit.period, burst = limit.burst, margin = limit.margin,
    since = last_start or 0, spent = last_start and limit.burst or 0,
  }
  if is_window(limit) then
    full_ring(cursor, last_start)
  end
  return cursor
end

local function recovered_limiter(limits, last_start)
  local cursors = {}
  for index, limit in ipairs(limits) do
    cursors[index] = cursor_after(limit, last_start)
  end
  return { cursors = cursors, interval = limits.interval, last_start = last_start, held_until = 0 }
end

local function same_limit(one, other)
  return one.limit == other.limit and one.period == other.period and one.burst == other.burst
    and (one.margin or 0) == (other.margin or 0)
end

local function follows(limiter, limits)
  if #limiter.cursors ~= #limits or limiter.interval ~= limits.interval then
    return false
  end
  for index, limit in ipairs(limits) do
    if not same_limit(limiter.cursors[index], limit) then
      return false
    end
  end
  return true
end

local function hold_limiter(limiter, hold_until)
  limiter.held_until = math.max(limiter.held_until, hold_until)
end

-- Ends a hold at this time, if it would end later.
local function lift_hold(limiter, at)
  limiter.held_until = math.min(limiter.held_until, at)
end

-- `since` and `spent` after the tokens that were returned by `at`.
local function tokens_at(cursor, at)
  if cursor.period > SHAPED then
    return at, 0
  end
  local since, spent = cursor.since, cursor.spent
  if at <= since then
    return since, spent
  end
  local every = spacing(cursor)
  local back = math.floor((at - since) / every)
  if back < spent then
    return since + back * every, spent - back
  end
  return at, 0
end

-- The earliest start of a slot after `others` further slots from this time on; 0 when there are tokens for all of them.
local function earliest_start(cursor, since, spent, others, from)
  local lacking = spent + others + 1 - cursor.burst
  if not cursor.ring then
    return lacking > 0 and since + lacking * spacing(cursor) or 0
  end
  local freed = earliest_in_ring(cursor, others, from)
  return lacking > 0 and cursor.period <= SHAPED and math.max(since + lacking * spacing(cursor), freed) or freed
end

-- What every slot needs to know of a list of cursors, whose limits do not change: the width of slots without a minimum
-- interval, whether a limit is in costs, and whether there may be rings.
local traits_of
do
  local known = {}

  function traits_of(limiter)
    local cursors = limiter.cursors
    local traits = known[cursors]
    if not traits then
      traits = { in_costs = false, has_rings = false }
      for _, cursor in ipairs(cursors) do
        traits.width = math.min(traits.width or slot_width(cursor), slot_width(cursor))
        traits.in_costs = traits.in_costs or is_in_costs(cursor)
        traits.has_rings = traits.has_rings or is_window(cursor) or cursor.ring ~= nil
      end
      traits.width = traits.width or limiter.interval and NARROW_SLOT or UNLIMITED_SLOT_WIDTH
      known[cursors] = traits
    end
    return traits
  end
end

local function width_of_slots(limiter)
  local width = traits_of(limiter).width
  if not limiter.interval then
    return width
  end
  return math.min(math.max(math.floor(limiter.interval / SLOTS_PER_INTERVAL), NARROWEST_SLOT), width)
end

-- The earliest start of the next slot by the minimum interval: that long after the end of the last slot.
local function after_interval(limiter)
  if not limiter.interval or not limiter.last_start then
    return 0
  end
  return math.max(limiter.last_start + width_of_slots(limiter), limiter.wide_end or 0) + limiter.interval
end

-- What is left for a send that costs more than this one.
local function reserved_from(limiter, cost, at)
  local waiting = limiter.waiting
  return waiting and waiting[1] > cost and waiting[2] <= at and at < waiting[3] and waiting[1] or 0
end

-- The start of the next slot if it is taken at this time, by a send of this cost or of 1.
local function next_start(limiter, at, cost)
  local start = math.max(at, limiter.held_until)
  if limiter.interval then
    start = math.max(start, after_interval(limiter))
  end
  local cursors = limiter.cursors
  for index = 1, #cursors do
    local cursor, earliest = cursors[index], nil
    if cursor.period > SHAPED then
      trust_ring(limiter, cursor)
    end
    if cursor.period > COSTED then
      earliest = earliest_of_cost(cursor, cost or 1, reserved_from(limiter, cost or 1, at), at)
    else
      earliest = earliest_start(cursor, cursor.since, cursor.spent, 0, at)
    end
    start = earliest > start and earliest or start
  end
  return start
end

-- To the send of which cost the next slot is owed.
local function waiting_cost(limiter, at)
  local waiting = limiter.waiting
  return waiting and at < waiting[3] and waiting[1] or 1
end

local counts_costs
do
  local function any_in_costs(cursors)
    for _, cursor in ipairs(cursors) do
      if is_in_costs(cursor) then
        return true
      end
    end
  end

  function counts_costs(limiter)
    return traits_of(limiter).in_costs or limiter.dormant and any_in_costs(limiter.dormant)
  end
end

-- Notes that a send of this cost has to wait until `start`, under a limit in costs.
local function wait_for_room(limiter, cost, start, at)
  local known = limiter.waiting and at < limiter.waiting[3] and limiter.waiting
  if start < math.huge and (not known or cost >= known[1]) and counts_costs(limiter) then
    limiter.waiting = { cost, known and known[2] or at + OVERTAKEN_FOR, start + WAITED_FOR }
  end
end

-- The start of a slot that is taken after `others` further slots.
local function start_after(limiter, others, at)
  local first = next_start(limiter, at)
  local start = first
  if limiter.interval then
    start = first + others * (limiter.interval + width_of_slots(limiter))
  end
  for _, cursor in ipairs(limiter.cursors) do
    if is_in_costs(cursor) then
      -- The one that waits is most likely among the others.
      local taken = math.floor(others * math.max(limiter.usual_cost or 0, COST_OF_ONE) / COST_OF_ONE)
      start = math.max(start, earliest_in_ring(cursor, math.max(taken, reserved_from(limiter, 1, at)), first))
    else
      local since, spent = tokens_at(cursor, first)
      start = math.max(start, earliest_start(cursor, since, spent, others, first))
    end
  end
  return start
end

-- Whether a slot changes anything. Otherwise there is nothing to give back.
local function has_state(limiter)
  return #limiter.cursors > 0 or limiter.interval or limiter.dormant
end

-- The last start that the dormant rings count.
local function mark_dormant(limiter)
  for _, cursor in ipairs(limiter.dormant or {}) do
    cursor.since = limiter.last_start or 0
  end
end

-- A script of an earlier version has granted slots that the dormant rings do not count: they count as all of the window.
local function trust_dormant(limiter)
  for _, cursor in ipairs(limiter.dormant or {}) do
    if cursor.since ~= (limiter.last_start or 0) then
      full_ring(cursor, limiter.last_start)
      cursor.ring_until = math.max(cursor.ring_until, release_of(cursor, cursor.ring[4]) + RETIRED_LONGER)
    end
  end
end

local take_slot
do
  -- Notes the cost of a slot, where a limit is in costs.
  local function note_cost(limiter, cost)
    local new, usual = cost * COST_OF_ONE, limiter.usual_cost
    limiter.last_cost = cost
    limiter.usual_cost = usual and usual > 0 and usual + math.floor((new - usual) / 16) or new
    if limiter.waiting and limiter.waiting[1] <= cost then
      limiter.waiting = nil
    end
  end

  -- Forgets the rings whose slots are out of their windows when a slot starts.
  local function forget_rings(limiter, slot_start)
    for _, cursor in ipairs(limiter.cursors) do
      if cursor.ring and cursor.ring_until and slot_start >= cursor.ring_until then
        cursor.ring, cursor.ring_until = nil, nil
      end
    end
    if limiter.dormant then
      trust_dormant(limiter)
      local kept = {}
      for _, cursor in ipairs(limiter.dormant) do
        kept[#kept + 1] = slot_start < cursor.ring_until and cursor or nil
      end
      limiter.dormant = kept[1] and kept
    end
  end

  -- Counts all slots of the even limits in rings, until no window has a slot any more that ends at this time: a wide slot may
  -- be used so late that the spacing alone does not keep the limit.
  local function count_in_rings(limiter, slot_end)
    for _, cursor in ipairs(limiter.cursors) do
      if not is_window(cursor) then
        if not cursor.ring then
          cursor.ring, traits_of(limiter).has_rings = { 0, 0, 0, 0, cursor.since }, true
          if limiter.last_start then
            local every = math.min(spacing(cursor), spacing_with(cursor, ring_slot(cursor)))
            count_even(cursor, cursor.burst, cursor.limit, every, 0, limiter.last_start + width_of_slots(limiter))
          end
        end
        local kept = window_of(cursor.period) + ring_slot(cursor) + (cursor.margin or 0) + bucket_of(cursor)
        cursor.ring_until = math.max(cursor.ring_until or 0, slot_end + kept + RETIRED_LONGER)
      end
    end
  end

  -- Takes the slot with this start, which is not before the next one of a send of this cost, and returns its end. A slot of a
  -- minimum interval is at least `needed` wide, as far as the limits allow: the caller takes the error of its clock from both
  -- ends, and the next slot begins later instead. `wide`: how wide it is for a caller outside Weir; nil for a permit.
  function take_slot(limiter, start, needed, cost, wide)
    local cursors, traits, wide_end = limiter.cursors, traits_of(limiter), limiter.wide_end
    local width = limiter.interval and width_of_slots(limiter) or traits.width
    if wide_end and wide_end <= start then
      wide_end = nil
    end
    -- Writing nil to a field that is not there makes room for it, which costs more than the rest of the function.
    if limiter.wide_end or limiter.wide_before or limiter.is_wide then
      limiter.wide_before, limiter.wide_end, limiter.is_wide = wide_end, wide_end, nil
    end
    if limiter.interval and needed > width then
      width = math.min(needed, traits.width)
      limiter.wide_end = math.max(wide_end or 0, start + width)
    end
    local has_rings = limiter.dormant or traits.has_rings
    if has_rings then
      forget_rings(limiter, start)
    end
    if wide and wide > width then
      width, limiter.is_wide = wide, true
      limiter.wide_end = math.max(wide_end or 0, start + width)
      count_in_rings(limiter, start + width)
    end
    -- With the place for one cursor, so that a table that grows is rare.
    local before = { start, limiter.last_start or false, nil, nil, nil }
    for index = 1, #cursors do
      local cursor = cursors[index]
      before[2 * index + 1], before[2 * index + 2] = cursor.since, cursor.spent
      local since, spent = tokens_at(cursor, start)
      cursor.since, cursor.spent = since, spent + 1
      if cursor.ring then
        take_in_ring(cursor, start, start + width, cost)
      end
    end
    if has_rings and counts_costs(limiter) then
      note_cost(limiter, cost)
    end
    if start > (limiter.last_start or 0) then
      limiter.last_start = start
    end
    if limiter.dormant then
      for _, cursor in ipairs(limiter.dormant) do
        take_in_ring(cursor, start, start + width, cost)
      end
      mark_dormant(limiter)
    end
    before[2 * #cursors + 3] = start + width
    if has_state(limiter) then
      limiter.last_take = before
    elseif limiter.last_take then
      limiter.last_take = nil
    end
    return start + width
  end
end

-- Slots under several budgets, a list of limiters: `weir_core::budget`. A slot has one start, the latest of what each
-- allows a send of this cost.
local function next_start_in(budgets, at, cost)
  local start = at
  for _, limiter in ipairs(budgets) do
    local own_start = next_start(limiter, at, cost)
    start = own_start > start and own_start or start
  end
  return start
end

-- Notes in those that allow a send of this cost later than `latest` that it has to wait.
local function wait_for_room_in(budgets, cost, from, at, latest)
  for _, limiter in ipairs(budgets) do
    local start = next_start(limiter, from, cost)
    if start > latest then
      wait_for_room(limiter, cost, start, at)
    end
  end
end

-- Takes the slot with this start, which all of them allow. It is as narrow as the narrowest.
local function take_slot_in(budgets, start, needed, cost)
  local slot_end = math.huge
  for _, limiter in ipairs(budgets) do
    local own_end = take_slot(limiter, start, needed, cost)
    slot_end = own_end < slot_end and own_end or slot_end
  end
  return start, slot_end
end

local give_back, give_back_in
do
  -- The cursors as they were before the last slot was taken, if it has this start; nil when something has moved them
  -- since, which a script of an earlier version does not note.
  local function cursors_before(limiter, start)
    local last = limiter.last_take
    if not last or last[1] ~= start or limiter.last_start ~= math.max(last[2] or 0, start)
      or #last ~= 3 + 2 * #limiter.cursors then
      return nil
    end
    local before = {}
    for index, cursor in ipairs(limiter.cursors) do
      before[index] = {
        limit = cursor.limit, period = cursor.period, burst = cursor.burst, margin = cursor.margin,
        since = last[2 * index + 1], spent = last[2 * index + 2], ring = cursor.ring, ring_until = cursor.ring_until,
      }
      local since, spent = tokens_at(before[index], start)
      if cursor.since ~= since or cursor.spent ~= spent + 1 or cursor.ring and cursor.ring[5] ~= mark_of(cursor, start) then
        return nil
      end
    end
    return before
  end

  -- Whether the last slot is that of a send of this cost. In the window shape several may start at once.
  local function is_last_cost(limiter, cost)
    return not counts_costs(limiter) or limiter.last_cost == cost
  end

  -- Gives the slot with this start of a send of this cost back, if it was the last that was taken. No send has used it, and
  -- none will.
  function give_back(limiter, start, at, cost)
    local before = start < at and is_last_cost(limiter, cost) and cursors_before(limiter, start)
    if before then
      for _, cursor in ipairs(before) do
        if cursor.ring then
          uncount_slot(cursor, limiter.last_take[#limiter.last_take], cost)
        end
      end
      for _, cursor in ipairs(limiter.dormant or {}) do
        uncount_slot(cursor, limiter.last_take[#limiter.last_take], cost)
      end
      limiter.cursors, limiter.last_start = before, limiter.last_take[2] or nil
      mark_dormant(limiter)
      limiter.last_take, limiter.wide_end, limiter.is_wide = nil, limiter.wide_before, nil
    end
  end

  -- Gives a slot back in all of them or in none. A wider one that started at the same instant is another one. 0: nothing was
  -- missed.
  function give_back_in(budgets, slot_start, at, cost)
    if slot_start == 0 then
      return
    end
    for _, limiter in ipairs(#budgets > 1 and budgets or {}) do
      local is_last = not limiter.is_wide and is_last_cost(limiter, cost) and cursors_before(limiter, slot_start)
      if has_state(limiter) and not is_last then
        return
      end
    end
    for _, limiter in ipairs(budgets) do
      give_back(limiter, slot_start, at, cost)
    end
  end
end

-- The pace of an adaptive destination: { not_before, spacing, window, generation, state, last_start, before_last,
-- granted, was_full, reports }. A cursor of its own beside those of the limits, so that it can only delay; a run computes the first five.
local function next_of_pace(pace)
  return pace.last_start < pace.not_before and pace.not_before or pace.last_start + pace.spacing
end

-- The start of a slot of a job that is taken after `others` further slots.
local function slot_after(job, others, at)
  local start = start_after(job.cursors, others, at)
  if job.pace then
    start = math.max(start, math.max(at, next_of_pace(job.pace)) + others * job.pace.spacing)
  end
  return start
end

-- When a run begins for the first slot that no queued permit will take: at once, unless that slot opens later.
local function due_for_next_slot(job, queued, at)
  local ahead = LEAD + job.preparation + (job.run_time or 0)
  return math.max(slot_after(job, queued, at) - ahead, at)
end

-- When the job of a backlog runs next.
local function paced_due(job, queued, at)
  return math.max(due_for_next_slot(job, queued, at), at + CADENCE)
end

-- A longer time counts at once; a shorter one reduces the known time by an eighth of the difference.
local function smoothed(known, new)
  return new >= known and new or known - math.floor((known - new) / 8)
end

-- A script has 200 local variables at most, so functions that only one needs are local to a block.

local reconfigure
do
  -- The cursor under another limit of the same period. The debt, in sends since the last start, stays, but no wait is
  -- longer than a window. No edit adds a token: the tokens by which a burst is raised count as spent.
  local function moved_cursor(cursor, limit, last_start)
    local moved = cursor_after(limit, nil)
    local every = spacing(limit)
    -- Both values are rounded so that the next start is later. The products exceed 2^53, so a further microsecond covers
    -- the lost digits.
    local on_the_way = math.floor(math.max(0, last_start - cursor.since) * every / spacing(cursor)) - 1
    local owed = math.max(0, cursor.since - last_start)
    if owed > 0 then
      owed = math.ceil(owed * every / spacing(cursor)) + 1
    end
    local spent = cursor.spent + math.max(0, limit.burst - cursor.burst)
    -- Spent tokens above the burst become time.
    local over = math.max(0, spent - limit.burst) * every
    -- No wait is longer than a window after the last start.
    local latest = last_start + window_of(limit.period) + slot_width(limit) + (limit.margin or 0) - every
    moved.since = math.min(last_start - math.max(0, on_the_way) + owed + over, latest)
    moved.spent = math.min(spent, limit.burst)
    return moved
  end

  local function of_period(limits, period)
    for _, limit in ipairs(limits or {}) do
      if window_of(limit.period) == window_of(period) then
        return limit
      end
    end
  end

  -- The cursor that has a ring of this window.
  local function ringed_of_period(limiter, period)
    local known = of_period(limiter.cursors, period)
    return known and known.ring and known or of_period(limiter.dormant, period)
  end

  -- The rings of limits that are in force no more.
  local function removed_rings(limiter, limits)
    local removed = {}
    for _, cursors in ipairs({ limiter.cursors, limiter.dormant }) do
      for _, cursor in ipairs(cursors) do
        local has_slots = cursor.ring and #cursor.ring > RING_HEAD
        if not of_period(limits, cursor.period) and (has_slots or cursor.ring_until) then
          removed[#removed + 1] = {
            limit = cursor.limit, burst = 1, margin = cursor.margin, since = cursor.since, spent = 1, ring = cursor.ring,
            period = is_window(cursor) and cursor.period or SHAPED + window_of(cursor.period) / 1000000,
            ring_until = cursor.ring_until or release_of(cursor, cursor.ring[4]) + RETIRED_LONGER,
          }
        end
      end
    end
    table.sort(removed, function(one, other)
      return one.ring_until > other.ring_until
    end)
    return removed[1] and { unpack(removed, 1, RINGS.DORMANT_AT_MOST) }
  end

  -- The cursor with the longest window among those with a ring: its ring has the oldest sends. Cursors are in the order of
  -- their windows.
  local function longest_ring(limiter)
    local longest
    for _, cursor in ipairs(limiter.cursors) do
      longest = cursor.ring and cursor or longest
    end
    return longest
  end

  -- The cursor of a limit of the window shape after an edit. `known`: the one of the same window, if there is one; `ringed`:
  -- the one that has a ring of it.
  local function window_cursor(limiter, limit, known, ringed, last_start, last_end)
    local cursor = cursor_after(limit, nil)
    local ring = ringed or not known and longest_ring(limiter)
    if ring then
      count_from(cursor, ring)
    elseif last_start then
      local even = known or { limit = limit.limit, burst = 1, since = last_start, spent = 1 }
      local every = known and spacing(known) or spacing(limit)
      local lacking = even.spent + 1 - even.burst
      local owed, most = lacking > 0 and even.since + lacking * every or 0, even.limit
      -- Before an earlier edit they may have come closer.
      if not is_in_costs(limit) then
        every, most = math.min(every, spacing(limit)), math.max(most, limit.limit)
      end
      count_even(cursor, even.burst, most, every, owed, last_end)
    end
    cursor.since, cursor.spent, cursor.ring[5] = last_start or 0, last_start and 1 or 0, mark_of(cursor, last_start or 0)
    return cursor
  end

  -- Gives the cursor of an even limit the ring of its window from before, until the slots in it are free.
  local function keep_ring(cursor, known)
    if #known.ring == RING_HEAD and not known.ring_until then
      return
    end
    cursor.ring = { 0, 0, 0, 0, cursor.since }
    count_from(cursor, known)
    cursor.ring_until = known.ring_until or release_of(known, known.ring[4]) + RETIRED_LONGER
  end

  -- Applies new limits without resetting any window. The last slot may still be used at its end, so if the new slots are
  -- narrower, the last start counts as later by the difference.
  function reconfigure(limiter, limits)
    if follows(limiter, limits) then
      return
    end
    local last_start = limiter.last_start
    -- The last send may start as late as at the end of a wider slot.
    local old_width = math.max(width_of_slots(limiter), (limiter.wide_end or 0) - (last_start or math.huge))
    for _, cursor in ipairs(limiter.cursors) do
      trust_ring(limiter, cursor)
    end
    trust_dormant(limiter)
    local cursors, edited = {}, {}
    -- Each new limit keeps its cursor, takes the debt over from another limit of its period, or begins after the last
    -- start.
    for index, limit in ipairs(limits) do
      local cursor, ringed = of_period(limiter.cursors, limit.period), ringed_of_period(limiter, limit.period)
      if cursor and same_limit(cursor, limit) then
        cursors[index] = cursor
      elseif is_window(limit) then
        cursors[index] = window_cursor(limiter, limit, cursor, ringed, last_start, (last_start or 0) + old_width)
      else
        local is_moved = cursor and not is_window(cursor) and last_start
        cursors[index] = is_moved and moved_cursor(cursor, limit, last_start) or cursor_after(limit, last_start)
        edited[#edited + 1] = cursors[index]
      end
      if ringed and not is_window(limit) and not cursors[index].ring then
        keep_ring(cursors[index], ringed)
      end
    end
    -- What waits may cost more than the new limit. It asks again.
    local dormant = removed_rings(limiter, limits)
    limiter.cursors, limiter.interval, limiter.last_take, limiter.waiting = cursors, limits.interval, nil, nil
    limiter.dormant = dormant
    -- A kept cursor does not move: the spacing of its limit already allows for slots of the old width.
    local later = old_width - width_of_slots(limiter)
    if last_start and later > 0 then
      limiter.last_start = last_start + later
      for _, cursor in ipairs(edited) do
        cursor.since = cursor.since + later
      end
    end
    mark_dormant(limiter)
  end
end

local function read_limit()
  return { limit = number(), period = number(), burst = number(), margin = number() }
end

-- 0 for no minimum interval.
local function read_interval()
  local interval = number()
  return interval > 0 and interval or nil
end

local function read_limits()
  local limits = list(read_limit)
  limits.interval = read_interval()
  return limits
end

-- The terms of this call. Those of many publications are the same, and stand in it once.
local terms_read = {}

-- The terms of a destination: the settings that decide whether a slot is granted. `valid_until`: when the override ends
-- that they come from; 0 for none. Those of a group name itself.
local function read_terms()
  local known = terms_read[number()]
  if known then
    return known
  end
  local terms = {
    version = number(), suspended = number() == 1, max_in_flight = number(), held_until = number(),
    released_at = number(), limits = read_limits(), is_adaptive = number() == 1, valid_until = number(),
    group = text(), weight = number(), of_keys = number() == 1, outer = text(),
  }
  terms_read[#terms_read + 1] = terms
  return terms
end

-- Whether the job has newer terms than these.
local function is_newer(job, terms)
  return job.terms_version > terms.version
end

-- Extends the hold of a job, and begins the slow start again: one send in flight after the hold. The job keeps the hold
-- too, because its cursors may be unknown.
local function hold_job(job, hold_until)
  if hold_until > job.held_until then
    job.held_until, job.slow_start = hold_until, 1
  end
  if job.cursors then
    hold_limiter(job.cursors, job.held_until)
  end
end

-- A later release replaces what the job knows of holds with what the store knows. Terms from before a release may name a
-- hold that it has lifted.
local function follow_hold(job, terms)
  local released_at = job.released_at or 0
  if terms.released_at > released_at then
    released_at = terms.released_at
    job.released_at, job.held_until = released_at, math.min(job.held_until, released_at)
    if job.cursors then
      lift_hold(job.cursors, released_at)
    end
  end
  if terms.released_at == released_at and terms.held_until > now then
    hold_job(job, terms.held_until)
  end
end

-- The maximum of outstanding permits.
local function most_outstanding(job)
  local most = math.min(job.max_in_flight, lowered_maximum(job) or job.max_in_flight)
  return job.pace and math.min(most, job.pace.window) or most
end

local function follow_terms(id, job, terms)
  local is_edit = job.terms_version > 0 and job.terms_version < terms.version
  job.terms_version, job.suspended, job.max_in_flight = terms.version, terms.suspended, terms.max_in_flight
  job.terms_until = terms.valid_until > 0 and terms.valid_until or nil
  -- What was expected under other limits says nothing.
  if is_edit then
    job.last_expected, job.own_starts = nil, nil
  end
  if job.cursors then
    reconfigure(job.cursors, terms.limits)
  end
  if not terms.is_adaptive then
    job.pace = nil
  end
  follow_hold(job, terms)
  if terms.group == id then
    -- People hold a group, so its receiver need not be tried with one send. That of limit keys asks for holds itself.
    job.is_group, job.of_keys, job.slow_start = true, terms.of_keys or nil, terms.of_keys and job.slow_start or nil
    -- The budget of limit keys is a member of the limit group of their destination.
    regroup(id, job, terms.outer ~= '' and terms.outer or nil)
    job.weight = terms.weight
    if is_edit and job.of_keys then
      job.edited_at = now
      FLOWS.run_parked(id, job)
    end
  else
    regroup(id, job, terms.group ~= '' and terms.group or nil)
    job.weight = terms.weight
  end
end
