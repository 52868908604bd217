-- Destinations were edited: what is out follows their terms from now on, unless these or newer ones are known, and their jobs run.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each edit: the destination, and its terms as in publish.lua
-- Answer  the generation

local before = earliest()
while more() do
  local id, terms = text(), read_terms()
  local job = load_job(id)
  if job.terms_version < terms.version then
    job.version = job.version + 1
    follow_terms(job, terms)
    -- The next run tells anew whether there is a backlog.
    job.fast_path_ahead = nil
    if job.phase == 'leased' then
      job.woken = now
    else
      schedule(id, job, now, 0, false)
    end
    save_job(id, job)
  end
end
announce(before)
return { generation }
