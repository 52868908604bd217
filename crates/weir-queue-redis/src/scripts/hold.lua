-- Holds destinations: none of their slots starts before `hold_until`. A hold is only extended, never shortened.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each hold: the destination, hold_until
-- Answer  the generation

while more() do
  local id, hold_until = text(), number()
  local job = load_job(id)
  -- The job keeps the hold too, because its cursors may be unknown.
  job.held_until = math.max(job.held_until, hold_until)
  if job.cursors then
    hold_limiter(job.cursors, hold_until)
  end
  save_job(id, job)
end
return { generation }
