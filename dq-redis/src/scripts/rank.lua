-- Ranks in sorted sets, for listings that continue after an entry. Follows prelude.lua in every
-- script.

-- Whether one string precedes another in a sorted set, that is by bytes. Lua's own `<` uses the
-- locale of the server.
local function precedes(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- The rank of the first entry after (score, member) in a sorted set, whether that entry still
-- exists or not. Entries of equal score are in order of their bytes, so a binary search finds it.
local function rank_after(zset, score, member)
  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', zset, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if precedes(member, redis.call('ZRANGE', zset, middle, middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
