-- The commands that the scripts of the native layout run.
local zset, hash = KEYS[1], KEYS[2]
local wanted = {
  { 'TIME' },
  { 'ZRANGE', zset, 0, 0 }, { 'ZRANGEBYSCORE', zset, 0, 0 }, { 'ZCOUNT', zset, 0, 0 },
  { 'ZCARD', zset }, { 'ZSCORE', zset, 'x' },
  { 'HGET', hash, 'x' }, { 'HMGET', hash, 'x' }, { 'HGETALL', hash }, { 'HSTRLEN', hash, 'x' },
  -- First, since they take no memory: a full server allows the rest of the script after that.
  { 'ZREM', zset, 'x' }, { 'ZREMRANGEBYRANK', zset, 0, 0 }, { 'HDEL', hash, 'x' },
  { 'ZADD', zset, 0, 'x' }, { 'HSETNX', hash, 'x', 0 }, { 'HSET', hash, 'x', 0 },
  { 'HINCRBY', hash, 'x', 1 },
  { 'ZREM', zset, 'x' }, { 'HDEL', hash, 'x' },
  { 'PUBLISH', ARGV[1], 0 },
}
