-- What became of permits: their attempts have ended, or they were not used. A job that waits for room runs, and one that waits
-- for time runs when the slots of unused permits come; not those of permits that found no place, since a run at once would find
-- none either, and so on without an end. The entries of those that are recorded leave the delivery queue. Told twice it changes
-- nothing.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each destination: its id, the generation of its permits; the serials of those whose attempts
--         have ended; of those that were not used; how many of them found no place in their workers; the entries to remove
-- Answer  the generation

local before = earliest()

-- Answers how many of them had been there: in the first set, as a rule, and else in the other.
local function remove(permits, first, other)
  if #permits == 0 then
    return 0
  end
  local removed = redis.call('ZREM', first, unpack(permits))
  if removed < #permits then
    removed = removed + redis.call('ZREM', other, unpack(permits))
  end
  return removed
end

-- There is a place for one more with each attempt that ends.
local function widen_window(job, ended)
  if job.window and ended > 0 then
    local window = job.window + ended
    job.window = window < job.max_in_flight and window or nil
  end
end

local function make_room(id, job)
  if job.phase == 'scheduled' and job.on_settle then
    schedule(id, job, now, now, false)
    return true
  elseif job.phase == 'leased' and not job.settled then
    job.settled = true
    return true
  end
end

-- A run that waits for the slot after theirs comes sooner.
local function pull_pace(id, job, queued)
  if job.phase ~= 'scheduled' or job.on_settle or job.due ~= job.floor or not job.cursors then
    return make_room(id, job)
  end
  local pace = paced_due(job.cursors, redis.call('ZCARD', queued), job.preparation, now)
  if pace < job.due then
    schedule(id, job, pace, pace, false)
    return true
  end
end

local function settle(id, ended, unused, crowded)
  local job, queued, in_flight = load_job(id), queued_of(id), in_flight_of(id)
  local gone = remove(ended, in_flight, queued)
  local back = remove(unused, queued, in_flight)
  local had_window = job.window
  widen_window(job, gone)
  if crowded > 0 and back > 0 then
    job.window = math.max(redis.call('ZCARD', queued) + redis.call('ZCARD', in_flight), 1)
  end
  local changed = job.window ~= had_window
  if back > crowded then
    changed = pull_pace(id, job, queued) or changed
  elseif gone > 0 then
    changed = make_room(id, job) or changed
  end
  if changed then
    save_job(id, job)
  end
  if redis.call('EXISTS', queued, in_flight) == 0 then
    redis.call('SREM', BUSY, id)
  end
end

local function permit()
  return permit_named(text())
end

while more() do
  local id, of = text(), number()
  local ended, unused, crowded, entries = list(permit), list(permit), number(), list(text)
  if of == generation then
    if #ended + #unused > 0 then
      settle(id, ended, unused, crowded)
    end
    if #entries > 0 then
      redis.call('XACK', QUEUE, WORKERS, unpack(entries))
      redis.call('XDEL', QUEUE, unpack(entries))
    end
  end
end
announce(before)
return { generation }
