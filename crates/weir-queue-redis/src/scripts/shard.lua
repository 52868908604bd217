-- What every script on a shard begins with: the keys, the time, the generation, and the jobs.
--
-- KEYS[1]  the shard; every other key is its name and a suffix, so all of them live in one slot of a Cluster
--
-- ARGV[1]  the caller's time, a lower bound of this shard's; 0 when it does not know it yet
--
-- Times are integer microseconds since the epoch, by this server's clock, read once, and a shift. The processes' monotonic
-- clocks carry the time: when the server's clock is set back, or a new server begins, the shift makes up for it. Numbers go to
-- commands as numbers: concatenation would cut them to 14 digits.

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
local known = redis.call('HMGET', GENERATION, 'run_id', 'began', 'checked', 'shift')
local shift = tonumber(known[4]) or 0
local now

-- The time goes on from here, whatever the server's clock says.
local function set_time(time)
  shift = time - server_time
  now = time
  redis.call('HSET', GENERATION, 'shift', shift)
end

now = server_time + shift
if now < caller_time - CLOCK_TOLERANCE then
  set_time(caller_time)
end

-- An integer as text: a third of what '%.0f' costs, and exact as far as doubles are.
local function digits(number)
  return string.format('%d', number)
end

local function notify(what, of, value)
  redis.call('PUBLISH', CHANNEL, what .. ' ' .. of .. ' ' .. digits(value))
end

local function queued_of(id)
  return SHARD .. ':queued:' .. id
end

local function in_flight_of(id)
  return SHARD .. ':in_flight:' .. id
end

-- A permit in those sets. Its name is longer than what Redis keeps in compact sets (64 bytes by default): in those each step
-- reads half of the set, which took about a quarter of the server's time.
local PERMIT = string.rep('.', 65)

local function permit_named(serial)
  return PERMIT .. serial
end

local function job_of(id)
  return SHARD .. ':job:' .. id
end

-- When the shard's generation began, which is also its name. The data belong to the server process that wrote them: when the
-- marker is missing (flushed, started empty, evicted) or names another process (restarted, a replica, an older snapshot),
-- what is here may be stale, and a new generation begins without schedule, queue and permits. Jobs name their generation
-- and are passed over when they are of another.
--
-- Asking the server for its name costs as much as half a script, so an answer is taken to hold for CHECKED_FOR, which is less
-- than a server needs to end and start again: data that say they were checked by then were written by this process.
local function current_generation()
  local stands = redis.call('EXISTS', QUEUE) == 1
  local since = now - (tonumber(known[3]) or 0)
  if stands and since >= 0 and since < CHECKED_FOR then
    return tonumber(known[2])
  end
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  if stands and known[1] == run_id then
    redis.call('HSET', GENERATION, 'checked', now)
    return tonumber(known[2])
  end
  if caller_time > 0 then
    set_time(caller_time)
  end
  local began = math.max(now, (tonumber(known[2]) or 0) + 1)
  redis.call('DEL', SCHEDULE, QUEUE, BUSY)
  redis.call('XGROUP', 'CREATE', QUEUE, WORKERS, '0', 'MKSTREAM')
  redis.call('HSET', GENERATION, 'run_id', run_id, 'began', began, 'checked', now)
  notify('generation', NUMBER, began)
  return began
end

local generation = current_generation()

-- A job that is not known starts its counts at the time, so that no lease, version or serial of a lost one ever comes again.
local function new_job()
  return {
    generation = generation, phase = 'idle', epoch = now, version = now, serial = now,
    terms_version = 0, max_in_flight = 0, preparation = 0, held_until = 0, permits_until = 0,
  }
end

-- No cursor is further ahead than a recovered one and the longest debt, unless it was written while the server's clock was ahead.
local function pull_back(limiter)
  local latest = now + MOST_AHEAD
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
  redis.call('DEL', queued_of(id), in_flight_of(id))
  return new_job()
end

-- Until when forgetting the job could change anything: while it is scheduled, held, or has permits, and until the longest
-- window after its last slot has passed. After that the store knows enough.
local function needed_until(job)
  local needed = math.max(now, job.due or 0, job.held_until, job.permits_until)
  if job.cursors then
    for _, cursor in ipairs(job.cursors.cursors) do
      needed = math.max(needed, (job.cursors.last_start or 0) + SPAN[cursor.period])
    end
  end
  return needed
end

local function expiry(time)
  return math.ceil((time - shift) / 1000) + KEPT_MS
end

local function save_job(id, job)
  redis.call('SET', job_of(id), cmsgpack.pack(job), 'PXAT', expiry(needed_until(job)))
end

-- The only place that changes a phase: job and schedule stay in step.
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

-- Tells waiting schedulers when something became due earlier than they know of.
local function announce(before)
  local after = earliest()
  if after and (not before or after < before) then
    notify('due', NUMBER, after)
  end
end
