-- Looks for what others have put under our names.
--
-- KEYS     the keys of the queue
-- returns  {entries put aside, then for each key that holds something else: its name}
-- cost     O(1)

local lane = lane_at(0, WIDTH)
local HASH, ZSET, LIST = 'HSTRLEN', 'ZCARD', 'LLEN'
-- In the order of the keys; the last four are those of the Redisson layout.
local kinds = { ZSET, HASH, HASH, ZSET, HASH, ZSET, HASH, HASH, ZSET, ZSET, LIST, LIST, HASH }
local aside = redis.pcall('ZCARD', lane.stray)
local found = { type(aside) == 'number' and aside or 0 }
for n = 1, #KEYS do
  local command = { kinds[n], KEYS[n] }
  if kinds[n] == HASH then
    command[3] = ''
  end
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then
    found[#found + 1] = KEYS[n]
  end
end
return found
