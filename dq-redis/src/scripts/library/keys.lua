-- The keys of a partition, what is stored in them, and the server's time.
--
-- A partition is a queue without shards, or one shard of a queue. A job is *waiting* (scheduled or
-- ready), *leased* or *dead*; it is *live* while it is waiting or leased. A *pinned* id is that of a
-- job that has ended, and stays refused for a while: a call that stores the job is repeated. All
-- times are milliseconds since the Unix epoch, by the server's clock. What attempts, deliveries,
-- losses and the conflict policies are, dq_core::Job and dq_core::NewJob say.
--
-- The Redis keys of a partition, in the order of KEYS, as `{prefix}:name:queue` (see keys.rs). `key`
-- holds the keys of jobs, by which others may know them:
--   due     sorted set  handle → due time: the waiting jobs
--   job     hash        handle → record: all jobs
--   state   hash        handle → state: the jobs that were leased or replayed before, and those whose
--                       ids are to be pinned
--   lease   sorted set  handle → end of the lease: the leased jobs; and the marker of a closed
--                       partition
--   key     hash        key → handle: the live jobs that have a key
--   dead    sorted set  handle → time of death: the dead jobs
--   reason  hash        handle → reason of death (kind, zero byte, message): the dead jobs
--   meta    hash        settings `paused`, `large` (a record may be large), `token` (the last
--                       fencing token: the server's microseconds, or one more than the token
--                       before if that is more, so that tokens grow even if the server has lost
--                       its last writes), `layout` (see shards/layout.rs), `pins` (pins.rs) and
--                       `format` (format.rs); totals `created`, `replaced`, `cancelled`, …
--   stray   sorted set  entry → score or time: the quarantine, in scripts `partition.quarantine`
--   ended   sorted set  handle → time of the end: the history, that is, jobs that have ended
--   past    hash        handle → past job: the history
--   unpin   sorted set  handle → end of the pin: the pinned ids
--   pin     hash        handle → pin: the pinned ids
--
-- Jobs in the history and pinned ids have entries in the last four only. These expire, so that they
-- do not outlive their last entry by long.
--
-- The native layout adds four keys for a queue's limits (gate.lua, groups.lua). All shards of a queue
-- share the first three; in a cluster, where they cannot, each shard has its own, and limits are refused:
--   flow    hash        `declared` and `overriding`, limits as text (flow.rs), also that there are none any
--                       more; `restored`, when a process made the declaration, if it has declared it again
--                       after a loss (limit.lua); `rate`, what the rate has
--                       used (RateState in dq_core); `closed_until`, by a handler's throttle; `full_by`,
--                       how many leases must end before a job may start, as of the last claim. With a
--                       limit of groups also: 'h', handle and shard → group ('' for none), the leased
--                       jobs; 'n' and group → how many of these it has, and 'n' → how many there are;
--                       `repair`, how far the counts and lines are repaired (repair.lua)
--   line    sorted set  the claimers that wait for room: 'j' and the name → when it joined in
--                       microseconds; 's' and the name → when it was last seen, minus LONG_AGO
--   groups  sorted set  entries of score 0, in order of their bytes: 'm' and group, a group in which the
--                       next claim returns parked jobs; 'p', group, zero byte, due time, handle and shard,
--                       the parked jobs of all shards
--   parked  sorted set  handle → due time: the parked jobs, which also wait, but are not in `due`
-- They are read only if `meta` has a `format`, which every limit sets. The last two are read only if it
-- keeps out versions that do not know groups.
--
-- The index of queues, `{prefix}:due-queues`, follows the keys of all partitions of a call, unless
-- these are shards, or the layout has no index:
--   sorted set  key `due` of a partition → when a claim has to look at the partition: not after the
--               first due time or end of a lease there. If that is not after now, any time up to now
-- What makes the first due time or end earlier lowers the time in the index. A claim that reads the
-- index sets it to the first one exactly; claims of few queues, which do not read it, leave it.
--
-- An entry of a sorted set that is no job, since it has no record or is not as long as a handle, is
-- quarantined. Only another program can have written it. Scripts that meet one move it to the
-- quarantine, where the backend's `check` reports it, and go on. There are two exceptions: listings
-- of the history only remove one, since no job there is still to run, and a purge (clear.lua)
-- deletes one and counts it as a job.
--
-- Handle: the name of a job in these keys, 14 bytes. The id of a job has 16: its last two, the
-- tail, are in the record (see handle.rs). Scripts take and return an id as handle and tail in one
-- string.
--
-- Record: written once, and again only if the job loses its key to another one (see `detach`) or
-- gets another payload.
--   6 bytes  when the job was accepted, big-endian
--   2 bytes  the tail of the id
--   1 byte   flags: 1 has a key, 2 has a limit of attempts, 4 has headers, 8 its id is to be pinned,
--            64 detaches a running job with its key; plus 16 times its conflict policy:
--            0 keep, 1 replace, 2 earliest, 3 latest
--   then, each only if its flag is set: length byte and key | 4 bytes limit | 4 bytes length and
--   headers
--   then     the payload
-- All that precedes the payload is the record prefix.
--
-- State: rewritten when a lease begins or ends. All numbers are big-endian. First the *numbers*:
--   8 bytes  fencing token; 0 while not leased
--   8 bytes  due time, that of the lease or, after it, the next one; 0 before the first lease
--   4 bytes  each attempts, deliveries and losses
--   8 bytes  for how many milliseconds the job was postponed: due time minus first due time
-- Then the *note*, for operators and for the end of the job:
--   6 bytes  when the last lease began; 0 if there was none
--   6 bytes  for how long the id is pinned after the end of the job, in milliseconds
--   4 bytes  limit of attempts, or 0    \  copied from the record when a lease begins, so that
--   8 bytes  accepted time and tail     /  the end of the job need not read it
--   1 byte   1 if there is an error, else 0
--   1 byte   each the length of the holder's name and of the key
--   then     the key, if any; the name of who held the last lease; the error
--
-- Past job: a letter, 'D' done, 'S' skipped, 'C' cancelled, 'R' replaced or 'M' removed; 4 bytes
-- length and the state; then why it was skipped, or the reason of death of a removed one.
--
-- Pin: 8 bytes end of the pin, 2 bytes tail, 8 bytes due time.

-- A text before the library names the keys that a layout adds to these 13, and their commands as in
-- CHEAP_COMMANDS: LAYOUT_KEYS and LAYOUT_COMMANDS. The native layout has none.

local NATIVE_KEYS = 13
local KEYS_PER_PARTITION = NATIVE_KEYS + #LAYOUT_KEYS
-- For each key of a partition, in the order of KEYS, a cheap command that fails if the key has
-- another type.
local CHEAP_COMMANDS = {
  'ZCARD', 'HSTRLEN', 'HSTRLEN', 'ZCARD', 'HSTRLEN', 'ZCARD', 'HSTRLEN', 'HSTRLEN', 'ZCARD',
  'ZCARD', 'HSTRLEN', 'ZCARD', 'HSTRLEN', unpack(LAYOUT_COMMANDS),
}
local keys = KEYS
-- The key of the index of queues; nil if there is none.
local QUEUE_INDEX = KEYS[#KEYS - #KEYS % KEYS_PER_PARTITION + 1]
-- The last time. Scores and Lua's numbers are doubles, exact up to 2^53; half of it leaves room for
-- adding a duration.
local MAX_TIME = 2 ^ 52
local clock = redis.call('TIME')
local now_micros = clock[1] * 1000000 + clock[2]
local now = math.floor(now_micros / 1000)
-- Redis is slow at formatting Lua's numbers, so frequent commands get text, like '100' for 100.
local now_text = string.format('%.0f', now)

-- The partition number `n`, from 0, of those in KEYS: its keys by name.
local function partition_at(n)
  local first = n * KEYS_PER_PARTITION
  local partition = {
    due = keys[first + 1], job = keys[first + 2], state = keys[first + 3],
    lease = keys[first + 4], key = keys[first + 5], dead = keys[first + 6],
    reason = keys[first + 7], meta = keys[first + 8], quarantine = keys[first + 9],
    ended = keys[first + 10], past = keys[first + 11], unpin = keys[first + 12],
    pin = keys[first + 13],
  }
  for i, name in ipairs(LAYOUT_KEYS) do
    partition[name] = keys[first + NATIVE_KEYS + i]
  end
  return partition
end

-- The numbers of the format that this version writes, and of the first one with groups: see format.rs.
local OWN_FORMAT, GROUPS_FORMAT = 3, 3

-- Whether jobs of the partition may be parked, by its format, which the script has read.
local function has_groups(partition)
  local write = partition.parked and partition.format
    and string.match(partition.format, '^%d+/(%d+)/')
  return (tonumber(write or 0) or 0) >= GROUPS_FORMAT
end

-- Calls a command with arguments from this one on, if there are any.
local function send(command, key, arguments, first)
  if #arguments >= (first or 1) then
    redis.call(command, key, unpack(arguments, first or 1))
  end
end
