-- Reads or changes the layout that one shard of a queue holds.
--
-- KEYS     the keys of the shard
-- ARGV     nothing; or 'swap', the layout that it must hold, the one that it then gets, and '1' if
--          the queue must be one that never had a job; or 'raise', a layout, '1' if the queue is
--          paused: taken over unless the shard holds a later one
-- returns  {the layout held now, 1 if the queue is paused, 1 if it never had a job}
-- cost     O(1)

local lane = lane_at(0, WIDTH)

local function epoch(layout)
  return tonumber(string.match(layout, '^%d+')) or 0
end

local meta = redis.call('HGETALL', lane.meta)
local held, paused = '', 0
for i = 1, #meta, 2 do
  if meta[i] == 'layout' then
    held = meta[i + 1]
  elseif meta[i] == 'paused' then
    paused = 1
  end
end

if ARGV[1] == 'swap' then
  if held == ARGV[2] and (ARGV[4] ~= '1' or #meta == 0) then
    held = ARGV[3]
    redis.call('HSET', lane.meta, 'layout', held)
  end
elseif ARGV[1] == 'raise' and ARGV[2] ~= held and epoch(ARGV[2]) >= epoch(held) then
  held = ARGV[2]
  redis.call('HSET', lane.meta, 'layout', held)
  if ARGV[3] == '1' then
    redis.call('HSETNX', lane.meta, 'paused', 1)
  end
end
return { held, paused, #meta == 0 and 1 or 0 }
