-- Runs each command that the other scripts run, and leaves nothing behind: a right that is missing is
-- told before there are jobs, not when half of a call is done.
--
-- KEYS     a sorted set and a hash that do not exist
-- ARGV     the channel of a queue that does not exist
-- returns  0
-- errors   NOPERM, which names the command, the key or the channel
-- cost     O(1)

local zset, hash = KEYS[1], KEYS[2]
redis.call('TIME')
for _, read in ipairs({
  { 'ZRANGE', zset, 0, 0 }, { 'ZRANGEBYSCORE', zset, 0, 0 }, { 'ZCOUNT', zset, 0, 0 },
  { 'ZCARD', zset }, { 'ZSCORE', zset, 'x' }, { 'HGET', hash, 'x' }, { 'HMGET', hash, 'x' },
  { 'HGETALL', hash }, { 'HSTRLEN', hash, 'x' },
}) do
  redis.call(unpack(read))
end
-- What takes memory comes last but its undoing: a server that is full has let the jobs in it out.
redis.call('ZREM', zset, 'x')
redis.call('HDEL', hash, 'x')
redis.call('ZADD', zset, 0, 'x')
redis.call('HSETNX', hash, 'x', 0)
redis.call('HSET', hash, 'x', 0)
redis.call('HINCRBY', hash, 'x', 1)
redis.call('ZREM', zset, 'x')
redis.call('HDEL', hash, 'x')
redis.call('PUBLISH', ARGV[1], 0)
return 0
