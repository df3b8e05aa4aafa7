-- Whether one string stands before another in a sorted set. Lua's own `<` goes by the locale of the
-- server.
local function precedes(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- Where in a sorted set the entries after (score, member) begin, whether that entry is there still
-- or not. Entries of equal score are in order of their bytes, so it can be found by halving.
local function place_after(zset, score, member)
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
