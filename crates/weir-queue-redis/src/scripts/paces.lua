-- The paces of destinations. Changes no job.
--
-- KEYS    the shard
-- ARGV    the caller's time; then the destinations
-- Answer  the generation; for each destination the state of its pace, or nil

local answer = { generation }
while more() do
  local pace = load_job(text()).pace
  answer[#answer + 1] = pace and pace.state or false
end
return answer
