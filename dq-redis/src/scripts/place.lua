-- Where in a sorted set the entries after (score, member) begin, whether that entry is there still
-- or not. Entries of equal score are in order of their bytes, so it can be found by halving.
local function place_after(zset, score, member)
  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', zset, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', zset, middle, middle)[1] > member then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
