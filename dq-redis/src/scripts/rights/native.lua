-- The commands that the scripts of the native layout run, each of which lib.rs lists under rights;
-- try.lua, which follows, runs them to find missing rights. The keys do not exist before.
local zset, hash = KEYS[1], KEYS[2]
local wanted = {
  { 'TIME' },
  { 'ZRANGE', zset, 0, 0 }, { 'ZRANGEBYSCORE', zset, 0, 0 }, { 'ZCOUNT', zset, 0, 0 },
  { 'ZCARD', zset }, { 'ZSCORE', zset, 'x' }, { 'PTTL', zset },
  { 'HGET', hash, 'x' }, { 'HMGET', hash, 'x' }, { 'HGETALL', hash }, { 'HSTRLEN', hash, 'x' },
  -- These come first, since they take no memory: a full server allows the rest of the script after
  -- that.
  { 'ZREM', zset, 'x' }, { 'ZREMRANGEBYRANK', zset, 0, 0 }, { 'HDEL', hash, 'x' },
  { 'PEXPIRE', zset, 1 },
  { 'ZADD', zset, 0, 'x' }, { 'HSETNX', hash, 'x', 0 }, { 'HSET', hash, 'x', 0 },
  { 'HINCRBY', hash, 'x', 1 },
  { 'ZREM', zset, 'x' }, { 'HDEL', hash, 'x' },
  { 'PUBLISH', ARGV[1], 0 },
}
