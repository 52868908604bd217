-- Settles permits: their attempts have ended, or they were not used. A job that waits for room becomes due, for the next
-- slot. A paced job becomes due for the slots that unused permits leave free. A permit that found no place in its worker
-- makes no job due: the run would find no place either, and would be repeated without end. Entries of recorded attempts
-- are removed from the delivery queue. Repeating the call changes nothing.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each destination: its id; the generation of its permits; the serials of permits
--         whose attempts have ended; for each of them when its send started, if it was answered and not refused, else 0;
--         the serials of unused permits; how many unused permits found no place; the entries to remove
-- Answer  the generation

local before = earliest()

-- Removes permits and returns how many there were. They usually are in the first set.
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

-- Each attempt that ends makes a place for one more.
local function raise_max_outstanding(job, ended)
  if job.max_outstanding and ended > 0 then
    local raised = job.max_outstanding + ended
    job.max_outstanding = raised < job.max_in_flight and raised or nil
  end
end

-- After a hold each send that is answered and not refused makes room for one more. Removes these permits one by one:
-- those that a repeated call does not find do not count.
local function remove_answered(job, permits, sent_at, in_flight, queued)
  local removed = 0
  for index, permit in ipairs(permits) do
    local found = remove({ permit }, in_flight, queued)
    removed = removed + found
    if found > 0 and job.slow_start and sent_at[index] > 0 and sent_at[index] >= job.held_until then
      local raised = job.slow_start + 1
      job.slow_start = raised < job.max_in_flight and raised or nil
    end
  end
  return removed
end

local function make_room(id, job, queued)
  if job.phase == 'scheduled' and job.on_settle then
    local due = job.cursors and due_for_next_slot(job, redis.call('ZCARD', queued), now) or now
    schedule(id, job, due, due, false)
    return true
  -- A run under way learns at its end that there is room. Otherwise it would wait for a settle that has come already.
  elseif job.phase == 'leased' and not job.settled then
    job.settled = true
    return true
  end
end

-- Makes a paced job due earlier, for the slots that unused permits leave free.
local function pull_pace(id, job, queued)
  -- A job that is not paced is not made due earlier. It only gets the room.
  if job.phase ~= 'scheduled' or job.on_settle or job.due ~= job.floor or not job.cursors then
    return make_room(id, job, queued)
  end
  local pace = paced_due(job, redis.call('ZCARD', queued), now)
  if pace < job.due then
    schedule(id, job, pace, pace, false)
    return true
  end
end

-- What has ended in each group, by its id, and these ids. Its members may be many with one permit each, so it is settled
-- once, after all of them.
local ended_in = {}

local function add_all(list, items)
  for _, item in ipairs(items) do
    list[#list + 1] = item
  end
end

-- The permits leave the sets of a group, too. Members that wait may get their room. The job of a group may be large, so it
-- is not saved if nothing has changed.
local function settle_in_group(group_id, in_group)
  local group, queued, in_flight = group_named(group_id), queued_of(group_id), in_flight_of(group_id)
  local slow_start = group.slow_start
  local removed = slow_start and remove_answered(group, in_group.ended, in_group.sent_at, in_flight, queued)
    or remove(in_group.ended, in_flight, queued)
  removed = removed + remove(in_group.unused, queued, in_flight)
  if removed > 0 and (#in_group.unused > 0 or group.on_settle) then
    call_waiting(group_id, group.on_settle)
  elseif group.slow_start == slow_start and not FLOWS.has_lost then
    groups[group_id] = nil
  end
end

local function settle(id, ended, sent_at, unused, crowded)
  local job, queued, in_flight = load_job(id), queued_of(id), in_flight_of(id)
  -- Only permits that are removed here count: a repeated call finds none.
  local max_before, slow_start_before = job.max_outstanding, job.slow_start
  local removed_ended = job.slow_start and remove_answered(job, ended, sent_at, in_flight, queued)
    or remove(ended, in_flight, queued)
  local removed_unused = remove(unused, queued, in_flight)
  raise_max_outstanding(job, removed_ended)
  -- A worker has no place for more, so no more than the present number may be outstanding.
  if crowded > 0 and removed_unused > 0 then
    job.max_outstanding = math.max(redis.call('ZCARD', queued) + redis.call('ZCARD', in_flight), 1)
  end
  local changed = job.max_outstanding ~= max_before or job.slow_start ~= slow_start_before
  -- An unused permit leaves its slot and its room free. An ended permit has used its slot and leaves only its room
  -- free.
  if removed_unused > crowded then
    changed = pull_pace(id, job, queued) or changed
  elseif removed_ended > 0 then
    changed = make_room(id, job, queued) or changed
  end
  if changed then
    save_job(id, job)
  end
  if job.group then
    local ended_there, unused_there = names_in_group(id, ended), names_in_group(id, unused)
    for _, group in ipairs(FLOWS.shared_by(id, job)) do
      if not ended_in[group] then
        ended_in[group] = { ended = {}, sent_at = {}, unused = {} }
        ended_in[#ended_in + 1] = group
      end
      local in_group = ended_in[group]
      add_all(in_group.ended, ended_there)
      add_all(in_group.sent_at, sent_at)
      add_all(in_group.unused, unused_there)
    end
  end
  return redis.call('EXISTS', queued, in_flight) == 0
end

local function permit()
  return permit_named(text())
end

-- Destinations without permits, and the entries of permits of which the store knows how they ended.
local without_permits, recorded = {}, {}
while more() do
  local id, permit_generation = text(), number()
  local ended, sent_at, unused, crowded, entries = list(permit), list(number), list(permit), number(), list(text)
  -- Permits of an earlier generation have gone with its data.
  if permit_generation == generation then
    if #ended + #unused > 0 and settle(id, ended, sent_at, unused, crowded) then
      without_permits[#without_permits + 1] = id
    end
    add_all(recorded, entries)
  end
end
for _, group in ipairs(ended_in) do
  settle_in_group(group, ended_in[group])
end
-- The gauges and tidy.lua visit only destinations with permits.
if #without_permits > 0 then
  redis.call('SREM', BUSY, unpack(without_permits))
end
-- Nobody will look for these entries.
if #recorded > 0 then
  redis.call('XACK', QUEUE, WORKERS, unpack(recorded))
  redis.call('XDEL', QUEUE, unpack(recorded))
end
save_groups()
announce(before)
return { generation }
