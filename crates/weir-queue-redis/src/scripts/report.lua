-- Takes reports of answers from adaptive destinations. A job runs at once if its pace may have to follow.
--
-- KEYS    the shard
-- ARGV    the caller's time; then for each report: the destination, the report, 1 when it is urgent, else 0
-- Answer  the generation

local before = earliest()

local function take_report(id, report, is_urgent)
  local job = load_job(id)
  local pace = job.pace
  if not pace then
    return
  end
  local reports = pace.reports or {}
  pace.reports = reports
  if #reports == MOST_REPORTS then
    table.remove(reports, 1)
  end
  reports[#reports + 1] = { now, report }
  if is_urgent or pace.spacing >= SLOW_PACE or #reports >= REPORTS_OF_A_RUN then
    if job.phase == 'leased' then
      job.woken = math.min(job.woken or now, now)
    elseif not job.due or job.due > now then
      schedule(id, job, now, 0, false)
    end
  end
  save_job(id, job)
end

while more() do
  take_report(text(), text(), number() == 1)
end
announce(before)
return { generation }
