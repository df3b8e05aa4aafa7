-- Reads the format of a prefix, and raises it to that of this version. A server that refuses writes
-- keeps the old one.
--
-- KEYS     hash `format`: see format.rs
-- ARGV     of this version: the number of its format, the oldest that may write, the oldest that may
--          read
-- returns  {the oldest that may write, the oldest that may read}, before; each '' if there is none
-- cost     O(1)

local stored = redis.call('HMGET', KEYS[1], 'format', 'write', 'read')
if (tonumber(stored[1] or 0) or 0) < tonumber(ARGV[1]) then
  redis.pcall('HSET', KEYS[1], 'format', ARGV[1], 'write', ARGV[2], 'read', ARGV[3])
end
return { stored[2] or '', stored[3] or '' }
