-- Counts quarantined entries, and finds keys of a partition that have another type, as another
-- program may have written them.
--
-- KEYS     the keys of the partition
-- returns  {number of quarantined entries, then the name of each key that has another type}
-- cost     O(1)

local partition = partition_at(0)
local quarantined = redis.pcall('ZCARD', partition.quarantine)
local reply = { type(quarantined) == 'number' and quarantined or 0 }
for n = 1, #KEYS do
  -- The index of queues, a sorted set, follows the keys of the partition.
  local command = { CHEAP_COMMANDS[n] or 'ZCARD', KEYS[n] }
  if command[1] == 'HSTRLEN' then
    command[3] = ''
  end
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then
    reply[#reply + 1] = KEYS[n]
  end
end
return reply
