-- Lists entries of a sorted set from its front, removing nothing.
--
-- KEYS     the sorted set
-- ARGV     how many to skip, how many to list
-- returns  member and score by turns, as text in every version of the protocol
-- cost     O(log n) and what is listed

local first = tonumber(ARGV[1])
return redis.call('ZRANGE', KEYS[1], first, first + ARGV[2] - 1, 'WITHSCORES')
