-- Ranks in sorted sets, for listings that continue after an entry.

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

-- The rank of the first entry of a sorted set that does not precede (score, member), which need
-- not be in the set itself. Entries of equal score are in order of their bytes, so a binary search
-- finds the rank.
local function rank_from(zset, score, member)
  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', zset, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if precedes(redis.call('ZRANGE', zset, middle, middle)[1], member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- The rank of the first entry after (score, member).
local function rank_after(zset, score, member)
  local rank = rank_from(zset, score, member)
  local entry = redis.call('ZRANGE', zset, rank, rank, 'WITHSCORES')
  local is_there = entry[1] == member and tonumber(entry[2]) == tonumber(score)
  return is_there and rank + 1 or rank
end
