-- Records that processes keep for each other: writes one and reads the others.
--
-- KEYS    the shard
-- ARGV    the caller's time, and after it: the name of the process, its record, how long records are kept in ms
-- Answer  the generation, the records of all other processes
--
-- Times are those of this server, whose clock may be set: then a record is forgotten early, or kept until the key
-- expires.

local RECORDS = SHARD .. ':records'
local own, record, kept_ms = text(), text(), number()
local server_ms = math.floor(server_time / 1000)

-- A key of another type was not written by Weir.
if redis.call('TYPE', RECORDS).ok ~= 'hash' then
  redis.call('DEL', RECORDS)
end
redis.call('HSET', RECORDS, own, digits(server_ms) .. ' ' .. record)
redis.call('PEXPIRE', RECORDS, kept_ms)

local answer = { generation }
local all = redis.call('HGETALL', RECORDS)
for index = 1, #all, 2 do
  local written, kept = string.match(all[index + 1], '^(%d+) (.*)$')
  if not written or server_ms - tonumber(written) > kept_ms or tonumber(written) > server_ms then
    redis.call('HDEL', RECORDS, all[index])
  elseif all[index] ~= own then
    answer[#answer + 1] = kept
  end
end
return answer
