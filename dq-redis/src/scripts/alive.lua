-- Says which keys have a live job in one shard.
--
-- KEYS     the keys of the shard
-- ARGV     keys of jobs
-- returns  a string with '1' or '0' for each
-- cost     O(1) a key

local lane = lane_at(0, WIDTH)
local other = other_layout(lane)
if other then
  return other_layout_reply(other)
end

local answers = {}
for i, key in ipairs(ARGV) do
  answers[i] = find(lane, 'k' .. key) and '1' or '0'
end
return table.concat(answers)
