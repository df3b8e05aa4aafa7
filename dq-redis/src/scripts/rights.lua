-- Runs each command that the other scripts run, and leaves nothing behind: a right that is missing is
-- told before there are jobs, not when half of a call is done.
--
-- KEYS     a sorted set and a hash that do not exist
-- ARGV     the channel of a queue that does not exist
-- returns  0
-- errors   NOPERM with the command and what Redis says of it; others as they are
-- cost     O(1)

local zset, hash = KEYS[1], KEYS[2]
for _, command in ipairs({
  { 'TIME' },
  { 'ZRANGE', zset, 0, 0 }, { 'ZRANGEBYSCORE', zset, 0, 0 }, { 'ZCOUNT', zset, 0, 0 },
  { 'ZCARD', zset }, { 'ZSCORE', zset, 'x' },
  { 'HGET', hash, 'x' }, { 'HMGET', hash, 'x' }, { 'HGETALL', hash }, { 'HSTRLEN', hash, 'x' },
  -- First, so that a server that is full allows the rest.
  { 'ZREM', zset, 'x' }, { 'HDEL', hash, 'x' },
  { 'ZADD', zset, 0, 'x' }, { 'HSETNX', hash, 'x', 0 }, { 'HSET', hash, 'x', 0 },
  { 'HINCRBY', hash, 'x', 1 },
  { 'ZREM', zset, 'x' }, { 'HDEL', hash, 'x' },
  { 'PUBLISH', ARGV[1], 0 },
}) do
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then
    redis.pcall('ZREM', zset, 'x')
    redis.pcall('HDEL', hash, 'x')
    if string.find(answer.err, 'user executing the script', 1, true) then
      return redis.error_reply('NOPERM ' .. command[1] .. ': ' .. answer.err)
    end
    return answer
  end
end
return 0
