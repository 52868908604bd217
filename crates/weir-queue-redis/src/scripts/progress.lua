-- How far destinations have come, for the watch over stalls. Changes no job.
--
-- KEYS    the shard
-- ARGV    the caller's time; then the destinations
-- Answer  the generation; the age in microseconds of the oldest permit that no worker has read, 0 when there is none;
--         then for each destination: permits queued; in flight; the lowered maximum of outstanding permits or 0; when
--         the last slot began, or nil; the earliest start of the next slot, or nil when there are no cursors

local unread = redis.call('XLEN', QUEUE) - redis.call('XPENDING', QUEUE, WORKERS)[1]
local answer = { generation, oldest_untaken_age(unread) }
while more() do
  local id = text()
  local job = load_job(id)
  local limiter = job.cursors
  local last = #answer
  answer[last + 1] = redis.call('ZCOUNT', queued_of(id), now, '+inf')
  answer[last + 2] = redis.call('ZCOUNT', in_flight_of(id), now, '+inf')
  local most, earliest_slot = lowered_maximum(job), job.held_until
  if job.pace then
    most, earliest_slot = math.min(most or job.pace.window, job.pace.window), math.max(earliest_slot, next_of_pace(job.pace))
  end
  answer[last + 3] = most or 0
  for _, group_id in ipairs(FLOWS.shared_by(id, job)) do
    local group = groups[group_id]
    if group.cursors then
      earliest_slot = next_start(group.cursors, math.max(earliest_slot, group.held_until))
    end
  end
  answer[last + 4] = limiter and limiter.last_start or false
  answer[last + 5] = limiter and next_start(limiter, earliest_slot, waiting_cost(limiter, now)) or false
end
return answer
