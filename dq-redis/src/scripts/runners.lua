-- Announces a runner, withdraws it, or lists the announced ones. Each call also removes expired
-- runners. `library` defines `now`, `now_text`, `send` and `extend_expiry`.
--
-- KEYS     1  hash        name of the runner → 8 bytes time of the announcement (big-endian), info
--          2  sorted set  name of the runner → end of the announcement
-- ARGV     none to list; else 1 name, 2 info, 3 how long it is valid in milliseconds, 0 to withdraw
-- returns  to list, {now, then for each runner: name, time of the announcement and info, end}; to
--          announce, {now, 1 if the runner was not announced, else 0}; to withdraw, {now}
-- cost     O(log n), a listing O(n); O(log n) for each removed runner

local infos, ends = KEYS[1], KEYS[2]
local name, info, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- One call removes at most 100 runners, so that it stays short. A listing skips the rest, because it
-- reads later ends only.
local removed = redis.call('ZRANGEBYSCORE', ends, '-inf', now_text, 'LIMIT', '0', '100')
if name and ttl == 0 then
  removed[#removed + 1] = name
end
send('ZREM', ends, removed)
send('HDEL', infos, removed)
local reply = { now }
if name and ttl > 0 then
  reply[2] = redis.call('HSET', infos, name, struct.pack('>I8', now) .. info)
  redis.call('ZADD', ends, string.format('%.0f', now + ttl), name)
  extend_expiry(ttl, ends, infos)
end
if not name then
  local entries = redis.call('ZRANGEBYSCORE', ends, '(' .. now_text, '+inf', 'WITHSCORES')
  for i = 1, #entries, 2 do
    local stored = redis.call('HGET', infos, entries[i])
    if stored and #stored >= 8 then
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = entries[i], stored, entries[i + 1]
    end
  end
end
return reply
