-- Lists entries of Redisson's order list with their due times. Removes nothing.
--
-- KEYS     1 the order list; 2 the sorted set of waiting entries, by due time
-- ARGV     how many to skip, how many to list
-- returns  member, score, member, score, ...; the score is '' if the member is not in the sorted
--          set any more
-- cost     O(1) an entry, listed or skipped

local first = tonumber(ARGV[1])
local listed = {}
for _, member in ipairs(redis.call('LRANGE', KEYS[1], first, first + ARGV[2] - 1)) do
  listed[#listed + 1] = member
  listed[#listed + 1] = redis.call('ZSCORE', KEYS[2], member) or ''
end
return listed
