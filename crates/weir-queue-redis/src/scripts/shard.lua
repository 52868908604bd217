-- The beginning of every script on a shard: the keys, the time, the generation, and the jobs.
--
-- KEYS[1]  the shard; every other key is this name and a suffix, so all of them are in one hash slot of a Cluster
--
-- ARGV[1]  the caller's time, a lower bound of this shard's time; 0 when the caller does not know it yet
--
-- Times are integer microseconds since the epoch: this server's clock, read once, plus a shift. The processes continue
-- the time with their monotonic clocks: when the server's clock is set, or another server takes over, the shift corrects
-- it. Numbers are passed to commands as numbers, because concatenation would cut them to 14 digits.

local SHARD = KEYS[1]
local SCHEDULE = SHARD .. ':schedule'
local QUEUE = SHARD .. ':queue'
local BUSY = SHARD .. ':busy'
local GENERATION = SHARD .. ':generation'
local CHANNEL = string.match(SHARD, '^(.*){') .. 'weir:notices'
local NUMBER = string.match(SHARD, ':(%d+)}$')
local WORKERS = 'workers'

local clock = redis.call('TIME')
local server_time = clock[1] * 1000000 + clock[2]
local caller_time = tonumber(ARGV[1])
local known = redis.call('HMGET', GENERATION, 'run_id', 'began', 'checked', 'shift', 'heard')
local shift = tonumber(known[4]) or 0
-- A time that a process has stated: at most about a second ago while any process runs, and a few milliseconds while the
-- shard is in use. The time was never earlier since.
local heard = tonumber(known[5]) or 0
-- The time of the shard, and the time by which this call acts.
local shard_time, now

-- Sets the time of the shard, independent of the server's clock.
local function set_time(time)
  shift = time - server_time
  shard_time, now = time, time
  redis.call('HSET', GENERATION, 'shift', shift)
end

shard_time = server_time + shift
now = shard_time
local earliest_time = math.max(caller_time, heard)
if now < earliest_time - CLOCK_TOLERANCE or (caller_time > 0 and not known[4]) then
  -- The server was set back, or has taken over from a server that was ahead. Or the shift is lost with other data, and
  -- the first process that knows the time sets it: the server's clock may be ahead.
  set_time(earliest_time)
elseif caller_time > 0 then
  -- Either the server was set forward and no process has corrected it yet, or the call arrives so late that its caller
  -- has given it up. An earlier time is right in the first case and harmless in the second: nothing expires by it, and
  -- no slot begins before its cursor.
  now = math.min(now, caller_time + LATE_CALL)
end

-- An integer as text. '%d' costs a third of '%.0f', and is exact for all integers that a double holds exactly.
local function digits(number)
  return string.format('%d', number)
end

local function notify(kind, shard, value)
  redis.call('PUBLISH', CHANNEL, kind .. ' ' .. shard .. ' ' .. digits(value))
end

local function queued_of(id)
  return SHARD .. ':queued:' .. id
end

local function in_flight_of(id)
  return SHARD .. ':in_flight:' .. id
end

-- The name of a permit in these sets. It is longer than the members of Redis's compact sets (64 bytes by default). In a
-- compact set each operation reads half of the set, which took about a quarter of the server's time.
local PERMIT = string.rep('.', 65)

local function permit_named(serial)
  return PERMIT .. serial
end

local function job_of(id)
  return SHARD .. ':job:' .. id
end

-- The shard's generation: the time at which it began. The data belong to the server process that wrote them. When the
-- marker is missing (flushed, started empty, evicted) or names another process (restarted, a replica, an older
-- snapshot), the data may be stale. Then a new generation begins without schedule, queue and permits. Jobs name their
-- generation; jobs of another generation are ignored.
--
-- INFO costs as much as half a script, so its result is used for CHECKED_FOR. A server needs longer than that to end
-- and start again, so data that were checked within that time were written by this process.
local function current_generation()
  local has_queue = redis.call('EXISTS', QUEUE) == 1
  local since = now - (tonumber(known[3]) or 0)
  -- The data were checked less than CHECKED_FOR ago, so INFO is not needed.
  if has_queue and since >= 0 and since < CHECKED_FOR then
    return tonumber(known[2])
  end
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  -- This server process has written the data.
  if has_queue and known[1] == run_id then
    redis.call('HSET', GENERATION, 'checked', now, 'heard', earliest_time)
    return tonumber(known[2])
  end
  -- Another server may have another clock, so the time continues from the caller's.
  if caller_time > 0 then
    set_time(caller_time)
  end
  -- Generations only rise, whatever the clock says.
  local began = math.max(now, (tonumber(known[2]) or 0) + 1)
  -- The jobs stay until they expire. `load_job` ignores them and drops their permits.
  redis.call('DEL', SCHEDULE, QUEUE, BUSY)
  redis.call('XGROUP', 'CREATE', QUEUE, WORKERS, '0', 'MKSTREAM')
  redis.call('HSET', GENERATION, 'run_id', run_id, 'began', began, 'checked', now)
  -- Processes learn at once that their permits are not valid any more.
  notify('generation', NUMBER, began)
  return began
end

local generation = current_generation()

-- A new job starts its counters at the current time, so that no epoch, version or serial of a lost job is ever used
-- again.
local function new_job()
  return {
    generation = generation, phase = 'idle', epoch = now, version = now, serial = now,
    terms_version = 0, max_in_flight = 0, preparation = 0, held_until = 0, permits_until = 0,
  }
end

-- A cursor can be ahead by a recovered last start and the longest debt. A cursor that is further ahead was written
-- while the server's clock was wrong. Not by the time of a late call: by that, every cursor would be ahead.
local function pull_back(limiter)
  local latest = shard_time + MOST_AHEAD
  for _, cursor in ipairs(limiter.cursors) do
    if cursor.since > latest + SPAN[cursor.period] then
      cursor.since, cursor.spent = latest, cursor.burst
    end
  end
  if limiter.last_start then
    limiter.last_start = math.min(limiter.last_start, latest)
  end
end

local function load_job(id)
  local packed = redis.call('GET', job_of(id))
  if packed then
    local job = cmsgpack.unpack(packed)
    if job.generation == generation then
      if job.cursors then
        pull_back(job.cursors)
      end
      return job
    end
  end
  -- No job of this generation: permits of an earlier one must not count.
  redis.call('DEL', queued_of(id), in_flight_of(id))
  return new_job()
end

-- How long the job must be kept: while it is scheduled, held, or has permits, and until the longest window after its
-- last slot has passed. After that its cursors can be recovered from the store.
local function needed_until(job)
  local needed = math.max(now, job.due or 0, job.held_until, job.permits_until)
  if job.cursors then
    for _, cursor in ipairs(job.cursors.cursors) do
      needed = math.max(needed, (job.cursors.last_start or 0) + SPAN[cursor.period])
    end
  end
  return needed
end

-- When a key that is needed until `time` expires, by the server's clock. Counted from now, because the shift may not be
-- corrected yet: by a wrong one the key would be gone at once.
local function expiry(time)
  return math.ceil((server_time + time - now) / 1000) + KEEP_LONGER_MS
end

local function save_job(id, job)
  redis.call('SET', job_of(id), cmsgpack.pack(job), 'PXAT', expiry(needed_until(job)))
end

-- The only function that changes a phase, so that job and schedule agree.
local function move_job(id, job, phase, due)
  job.phase = phase
  job.due = due
  if due then
    redis.call('ZADD', SCHEDULE, due, id)
  else
    redis.call('ZREM', SCHEDULE, id)
  end
end

local function schedule(id, job, due, floor, on_settle)
  job.floor = floor
  job.on_settle = on_settle
  move_job(id, job, 'scheduled', due)
end

-- The shard's earliest due time; nil when nothing is scheduled.
local function earliest()
  return tonumber(redis.call('ZRANGE', SCHEDULE, 0, 0, 'WITHSCORES')[2])
end

-- Notifies waiting schedulers when the earliest due time is now earlier than `before`.
local function announce(before)
  local after = earliest()
  if after and (not before or after < before) then
    notify('due', NUMBER, after)
  end
end
