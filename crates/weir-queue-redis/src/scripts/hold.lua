-- Holds destinations: none of their slots starts before `hold_until`. A hold is only extended here. A hold that was asked
-- for by a send from before the last release is ignored.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each hold: the destination, hold_until, when the send started
-- Answer  the generation

while more() do
  local id, hold_until, sent_at = text(), number(), number()
  local job = load_job(id)
  if sent_at >= (job.released_at or 0) then
    hold_job(job, hold_until)
    save_job(id, job)
  end
end
return { generation }
