-- What a caller has read of a group in the store: its terms, and cursors if it was asked to recover them.

local function read_bucket()
  return { number(), number() }
end

local function read_cursor()
  local cursor = read_limit()
  cursor.since, cursor.spent = number(), number()
  if is_window(cursor) then
    cursor.ring = { number(), 0, 0, 0, mark_of(cursor, cursor.since) }
    for _, bucket in ipairs(list(read_bucket)) do
      count_in(cursor.ring, bucket[1], bucket[2])
    end
  end
  return cursor
end

local function read_dormant()
  local cursor = read_cursor()
  cursor.ring_until = number()
  return cursor
end

local function read_limiter()
  local last_start, held_until = number(), number()
  local limiter = {
    last_start = last_start > 0 and last_start or nil, held_until = held_until,
    interval = read_interval(), cursors = list(read_cursor), dormant = list(read_dormant),
  }
  limiter.dormant = limiter.dormant[1] and limiter.dormant
  return limiter
end

local function read_group()
  return { terms = read_terms(), recovered = list(read_limiter)[1] }
end

-- The terms that a group has followed in this call.
local followed = {}

-- The group follows newer terms. Its unknown cursors come only from the store: until then nobody gets a slot.
local function follow_group(id, read)
  if followed[id] == read.terms and not read.recovered then
    return
  end
  local group = group_named(id)
  followed[id] = read.terms
  if not group.cursors and read.recovered then
    group.cursors = read.recovered
    hold_limiter(group.cursors, group.held_until)
  end
  follow_terms(id, group, read.terms)
end
