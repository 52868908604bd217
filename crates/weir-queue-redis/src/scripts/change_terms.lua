-- Applies the terms of edited destinations and groups, also to outstanding permits, and makes their jobs due. Terms that are not
-- newer than the known ones are ignored.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each edit: the destination or group, and its terms as in publish.lua
-- Answer  the generation

local before = earliest()
while more() do
  local id, terms = text(), read_terms()
  local job = groups[id] or load_job(id)
  if job.terms_version < terms.version then
    -- It counts as a wake: a run under way does not stop the job.
    job.version = job.version + 1
    follow_terms(id, job, terms)
    -- The next run finds out whether there is a backlog.
    job.fast_path_ahead = nil
    if job.phase == 'leased' then
      job.woken = now
    else
      schedule(id, job, now, 0, false)
    end
    save_job(id, job)
  end
end
save_groups()
announce(before)
return { generation }
