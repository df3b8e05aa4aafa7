-- Looks for what others have put under our names.
--
-- KEYS     the keys of the queue
-- returns  {entries put aside, then for each key that holds something else: its name}
-- cost     O(1)

local lane = lane_at(0, WIDTH)
local hashes = { [lane.job] = 1, [lane.state] = 1, [lane.key] = 1, [lane.reason] = 1, [lane.meta] = 1 }
local aside = redis.pcall('ZCARD', lane.stray)
local found = { type(aside) == 'number' and aside or 0 }
for n = 1, WIDTH do
  local answer
  if hashes[KEYS[n]] then
    answer = redis.pcall('HSTRLEN', KEYS[n], '')
  else
    answer = redis.pcall('ZCARD', KEYS[n])
  end
  if type(answer) == 'table' and answer.err then
    found[#found + 1] = KEYS[n]
  end
end
return found
