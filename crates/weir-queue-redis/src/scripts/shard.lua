-- The beginning of every script on a shard: the keys, the time, the generation, and the jobs.
--
-- KEYS[1]  the shard; every other key is this name and a suffix, so all of them are in one hash slot of a Cluster
--
-- ARGV[1]  the caller's time, a lower bound of this shard's time; 0 when the caller does not know it yet
-- ARGV[2]  the installation of the caller
-- ARGV[3]  the latest generation of the shard that the caller knows; 0 when it knows none
--
-- Times are integer microseconds since the epoch: this server's clock, read once, plus a shift. The processes continue
-- the time with their monotonic clocks: when the server's clock is set, or another server takes over, the shift corrects
-- it. Numbers are passed to commands as numbers, because concatenation would cut them to 14 digits.

local SHARD = KEYS[1]
local SCHEDULE = SHARD .. ':schedule'
local QUEUE = SHARD .. ':queue'
local BUSY = SHARD .. ':busy'
local GENERATION = SHARD .. ':generation'
local PREFIX, NUMBER = string.match(SHARD, '^{(.*):(%d+)}$')
local CHANNEL = PREFIX .. ':notices'
local WORKERS = 'workers'
local INSTALLATION = ARGV[2]

local clock = redis.call('TIME')
local server_time = clock[1] * 1000000 + clock[2]
local caller_time = tonumber(ARGV[1])
local known = redis.pcall('HMGET', GENERATION, 'run_id', 'began', 'checked', 'shift', 'installation', 'heard')
if known.err then
  -- The key was overwritten with another type, so nothing is known.
  redis.call('DEL', GENERATION)
  known = {}
end

-- The shard belongs to the installation that came first. Another one changes nothing: it would run its own destinations
-- on these keys. A marker that is missing (a Redis that came back empty, a shard of an earlier version) or that is no
-- id is written anew.
if known[5] ~= INSTALLATION then
  if string.match(known[5] or '', '^ins_[0-7][%l%d]+$') then
    return redis.error_reply('FOREIGN ' .. known[5])
  end
  redis.call('HSET', GENERATION, 'installation', INSTALLATION)
end

-- A number as this program writes it; nil for anything else, so that no value that was damaged is used.
local function integer_in(value, least, most)
  local number = tonumber(value)
  return number and number >= least and number <= most and number % 1 == 0 and number or nil
end

local known_shift = integer_in(known[4], -LATEST, LATEST)
local shift = known_shift or 0
-- A time that a process has stated: at most about a second ago while any process runs, and a few milliseconds while the
-- shard is in use. The time was never earlier since.
local heard = integer_in(known[6], 1, LATEST) or 0
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
if now < earliest_time - CLOCK_TOLERANCE or (caller_time > 0 and not known_shift) then
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

-- Channels are common to all databases of a server, so a message names its installation.
local function notify(kind, shard, value)
  redis.call('PUBLISH', CHANNEL, kind .. ' ' .. shard .. ' ' .. digits(value) .. ' ' .. INSTALLATION)
end

local function queued_of(id)
  return SHARD .. ':queued:' .. id
end

local function in_flight_of(id)
  return SHARD .. ':in_flight:' .. id
end

-- The turn queue of a group; see turns.lua.
local function turns_of(id)
  return SHARD .. ':turns:' .. id
end

-- The limit keys of a destination that their own terms delay for long, by the time at which they were delayed.
function FLOWS.parked_of(id)
  return SHARD .. ':parked:' .. id
end

function FLOWS.unpark(id, job)
  if job.parked then
    redis.call('ZREM', FLOWS.parked_of(job.group), id)
    job.parked = nil
  end
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
local known_began = integer_in(known[2], 1, LATEST)
local caller_generation = integer_in(ARGV[3], 1, LATEST) or 0
local generation

-- Generations only rise, whatever the clock says and whatever this server has lost: a process ignores the permits of
-- every generation before the latest one that it knows.
local function begin_generation(run_id)
  -- Another server may have another clock, so the time continues from the latest that a process has stated.
  if caller_time > 0 then
    set_time(earliest_time)
  end
  generation = math.max(now, (known_began or 0) + 1, caller_generation + 1)
  -- The jobs stay until they expire. `load_job` ignores them and drops their permits.
  redis.call('DEL', SCHEDULE, QUEUE, BUSY)
  redis.call('XGROUP', 'CREATE', QUEUE, WORKERS, '0', 'MKSTREAM')
  redis.call('HDEL', GENERATION, 'short_since')
  redis.call('HSET', GENERATION, 'run_id', run_id, 'began', generation, 'checked', now)
  -- Processes learn at once that their permits are not valid any more.
  notify('generation', NUMBER, generation)
end

local function server_run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- INFO costs as much as half a script, so its result is used for CHECKED_FOR. A server needs longer than that to end
-- and start again, so data that were checked within that time were written by this process.
local function find_generation()
  -- The data are older than what the caller has seen: they were lost, and another process came first.
  local is_complete = known_began and known_began >= caller_generation and redis.call('TYPE', QUEUE).ok == 'stream'
  local since = now - (tonumber(known[3]) or 0)
  -- The data were checked less than CHECKED_FOR ago, so INFO is not needed.
  if is_complete and since >= 0 and since < CHECKED_FOR then
    generation = known_began
    return
  end
  local run_id = server_run_id()
  -- This server process has written the data.
  if is_complete and known[1] == run_id then
    generation = known_began
    redis.call('HSET', GENERATION, 'checked', now, 'heard', earliest_time)
  else
    begin_generation(run_id)
  end
end

find_generation()

-- A new job starts its counters at the current time, so that no epoch, version or serial of a lost job is ever used
-- again. Earlier permits of its destination get no slots from `known_since` on.
local function new_job(known_since)
  return {
    generation = generation, known_since = known_since, phase = 'idle', epoch = now, version = now, serial = now,
    terms_version = 0, max_in_flight = 0, preparation = 0, held_until = 0, permits_until = 0,
  }
end

-- A cursor can be ahead by a recovered last start and the longest debt. A cursor that is further ahead was written
-- while the server's clock was wrong. Not by the time of a late call: by that, every cursor would be ahead.
local function pull_back(limiter)
  local latest = shard_time + MOST_AHEAD
  for _, cursor in ipairs(limiter.cursors) do
    if cursor.since > latest + longest_span(cursor) then
      cursor.since, cursor.spent = latest, cursor.burst
    end
  end
  if limiter.last_start then
    limiter.last_start = math.min(limiter.last_start, latest)
  end
  if limiter.wide_end then
    limiter.wide_end = math.min(limiter.wide_end, latest)
  end
end

-- The string that a key holds; nil when the key is missing or holds anything else.
local function string_at(key)
  local held = redis.pcall('GET', key)
  return type(held) == 'string' and held or nil
end

local function unpacked(packed)
  local is_read, value = pcall(cmsgpack.unpack, packed)
  return is_read and type(value) == 'table' and value or nil
end

-- The table that a key holds; nil when the key is missing or holds anything else.
local function read_packed(key)
  local packed = string_at(key)
  return packed and unpacked(packed)
end

-- `packed`: what its key holds, if the caller has read it.
local function load_job(id, packed)
  local job = packed and unpacked(packed) or not packed and read_packed(job_of(id))
  if job and job.generation == generation then
    if job.cursors then
      pull_back(job.cursors)
    end
    if job.pace then
      job.pace.last_start = math.min(job.pace.last_start, shard_time + MOST_AHEAD)
    end
    return job
  end
  -- No job of this generation: permits of an earlier one must not count. The same if the job of this generation was
  -- deleted.
  redis.call('DEL', queued_of(id), in_flight_of(id), turns_of(id), FLOWS.parked_of(id))
  -- A job of an earlier generation is still there, so this generation has issued no permit to the destination.
  -- Otherwise it may have issued some until now.
  return new_job(job and math.min(generation, now) or now)
end

-- The maximum of outstanding permits where workers have no places for more, or where a hold has ended a moment ago; nil
-- when only `max_in_flight` counts.
local function lowered_maximum(job)
  if job.max_outstanding and job.slow_start then
    return math.min(job.max_outstanding, job.slow_start)
  end
  return job.max_outstanding or job.slow_start
end

-- How long the job must be kept: while it is scheduled, held, or has permits, and until the longest window after its
-- last slot has passed. After that its cursors can be recovered from the store.
local function needed_until(job)
  local needed = math.max(now, job.due or 0, job.held_until, job.permits_until)
  if job.phase == 'waiting' then
    needed = math.max(needed, now + WAITING_KEPT)
  end
  -- A pace outlasts the quiet times of its destination.
  if job.pace then
    needed = math.max(needed, now + PACE_KEPT)
  end
  if job.cursors then
    local last_start = job.cursors.last_start or 0
    for _, cursor in ipairs(job.cursors.cursors) do
      needed = math.max(needed, last_start + longest_span(cursor))
    end
    for _, cursor in ipairs(job.cursors.dormant or {}) do
      needed = math.max(needed, cursor.ring_until)
    end
    -- No slot is wider than this.
    needed = math.max(needed, last_start + (job.cursors.interval or 0) + WIDEST_SLOT[#WIDEST_SLOT])
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

-- As many arguments in one command, far fewer than Lua can unpack.
local MOST_ARGUMENTS = 1000

local function call_in_parts(command, key, arguments)
  for from = 1, #arguments, MOST_ARGUMENTS do
    redis.call(command, key, unpack(arguments, from, math.min(from + MOST_ARGUMENTS - 1, #arguments)))
  end
end

-- A call may move hundreds of jobs, some of them twice, so its moves are written together: before a queue is read, and at
-- the end of each script that has this block (scripts/assembly.rs).
local move_in, score_in, write_moves
do
  -- What changes in the schedule and in turn queues, by the key: for each member its score, or false when it leaves.
  local moves = {}

  function move_in(queue, member, score)
    local moved = moves[queue]
    if not moved then
      moved = {}
      moves[queue] = moved
    end
    moved[member] = score
  end

  -- False or nil for one that is not in the queue.
  function score_in(queue, member)
    local score = moves[queue] and moves[queue][member]
    if score == nil then
      score = redis.call('ZSCORE', queue, member)
    end
    return score
  end

  function write_moves()
    for queue, moved in pairs(moves) do
      local scored, left = {}, {}
      for member, score in pairs(moved) do
        if score then
          scored[#scored + 1] = score
          scored[#scored + 1] = member
        else
          left[#left + 1] = member
        end
      end
      call_in_parts('ZREM', queue, left)
      call_in_parts('ZADD', queue, scored)
      if scored[1] and queue ~= SCHEDULE then
        redis.call('PEXPIREAT', queue, expiry(now + WAITING_KEPT))
      end
    end
    moves = {}
  end
end

-- The only function that changes a phase, so that job, schedule and turn queue agree.
local function move_job(id, job, phase, due)
  if job.phase == 'waiting' then
    move_in(turns_of(job.group), id, false)
  end
  FLOWS.unpark(id, job)
  job.phase = phase
  job.due = due
  move_in(SCHEDULE, id, due or false)
end

-- The job runs when its terms end, if not before: they are over then. A group is not leased, so one whose terms are over
-- already waits for the run of a member that brings others.
local function schedule(id, job, due, floor, on_settle)
  if job.terms_until and not (job.is_group and job.terms_until <= now) then
    due, floor = math.min(due, job.terms_until), math.min(floor, job.terms_until)
  end
  job.floor = floor
  job.on_settle = on_settle
  move_job(id, job, 'scheduled', due)
end

-- The shard's earliest due time; nil when nothing is scheduled.
local function earliest()
  write_moves()
  return tonumber(redis.call('ZRANGE', SCHEDULE, 0, 0, 'WITHSCORES')[2])
end

-- Notifies waiting schedulers when the earliest due time is now earlier than `before`.
local function announce(before)
  local after = earliest()
  if after and (not before or after < before) then
    notify('due', NUMBER, after)
  end
end
