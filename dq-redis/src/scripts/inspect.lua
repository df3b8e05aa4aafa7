-- Finds what other programs have written under the names of a partition.
--
-- KEYS     the keys of the partition
-- returns  {number of entries in quarantine, then the name of each key that has another type}
-- cost     O(1)

local partition = partition_at(0, KEYS_PER_PARTITION)
local HASH, ZSET, LIST = 'HSTRLEN', 'ZCARD', 'LLEN'
-- In the order of the keys; the last four are those of the Redisson layout.
local commands = { ZSET, HASH, HASH, ZSET, HASH, ZSET, HASH, HASH, ZSET, ZSET, LIST, LIST, HASH }
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
