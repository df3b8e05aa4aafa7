-- Lists entries of Redisson's order list with their due times. Removes nothing.
--
-- KEYS     the order list, Redisson's sorted set of waiting entries by due time
-- ARGV     how many to skip, how many to list
-- returns  member, score, member, score, ...; the score is '' if the member is not in the sorted
--          set any more
-- cost     O(log n) an entry, and O(1) for each skipped one

local first = tonumber(ARGV[1])
local listed = {}
for _, member in ipairs(redis.call('LRANGE', KEYS[1], first, first + ARGV[2] - 1)) do
  listed[#listed + 1] = member
  listed[#listed + 1] = redis.call('ZSCORE', KEYS[2], member) or ''
end
return listed
