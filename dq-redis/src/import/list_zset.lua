-- Lists entries of a sorted set from its front. Removes nothing.
--
-- KEYS     the sorted set
-- ARGV     how many to skip, how many to list
-- returns  member, score, member, score, ..., as text in every version of the protocol
-- cost     O(log n) and O(1) for each listed entry

local first = tonumber(ARGV[1])
return redis.call('ZRANGE', KEYS[1], first, first + ARGV[2] - 1, 'WITHSCORES')
