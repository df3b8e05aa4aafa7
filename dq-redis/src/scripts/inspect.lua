-- Counts quarantined entries, and finds keys of a partition that have another type, as another
-- program may have written them.
--
-- KEYS     the keys of the partition
-- returns  {number of quarantined entries, then the name of each key that has another type}
-- cost     O(1)

local partition = partition_at(0)
-- A cheap command for each type, which fails on a key of another type.
local HASH, ZSET, LIST = 'HSTRLEN', 'ZCARD', 'LLEN'
-- In the order of KEYS; the last four are of the Redisson layout, and the first of these may be the
-- index of queues.
local commands = {
  ZSET, HASH, HASH, ZSET, HASH, ZSET, HASH, HASH, ZSET, ZSET, HASH, ZSET, HASH,
  ZSET, LIST, LIST, HASH,
}
local quarantined = redis.pcall('ZCARD', partition.quarantine)
local reply = { type(quarantined) == 'number' and quarantined or 0 }
for n = 1, #KEYS do
  local command = { commands[n], KEYS[n] }
  if commands[n] == HASH then
    command[3] = ''
  end
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then
    reply[#reply + 1] = KEYS[n]
  end
end
return reply
