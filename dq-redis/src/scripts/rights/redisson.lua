-- The commands that the Redisson scripts run besides the native ones; the last two keys have Java's
-- names.
local list = KEYS[3]
for _, command in ipairs({
  { 'ZCARD', KEYS[4] }, { 'LLEN', KEYS[5] },
  { 'ZMSCORE', zset, 'x' }, { 'ZSCAN', zset, 0 }, { 'HLEN', hash }, { 'HSCAN', hash, 0 },
  { 'LLEN', list }, { 'LRANGE', list, 0, 0 }, { 'LREM', list, 1, 'x' },
  { 'RPUSH', list, 'x' }, { 'LPOP', list, 1 }, { 'UNLINK', list },
}) do
  wanted[#wanted + 1] = command
end
