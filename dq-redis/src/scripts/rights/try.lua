-- Runs each command that the scripts run, and leaves nothing behind. So a missing right, or a server
-- without the library `struct`, is found before there are jobs, not in the middle of a call. A text
-- before this one defines `wanted`, the commands.
--
-- KEYS     up to three keys that do not exist, for a sorted set, a hash and a list; then any others
-- ARGV     the channel of a queue that does not exist
-- returns  0
-- errors   NOPERM with the command and the message of Redis; other errors as they are
-- cost     O(1)

struct.size('L')
for _, command in ipairs(wanted) do
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then
    -- The keys hold only what this script has put there.
    for n = 1, math.min(#KEYS, 3) do
      redis.pcall(({ 'ZREM', 'HDEL', 'LPOP' })[n], KEYS[n], n < 3 and 'x' or 1)
    end
    -- Before Redis 7 a missing right has no code inside a script.
    if string.find(answer.err, 'user executing the script', 1, true) then
      return redis.error_reply('NOPERM ' .. command[1] .. ': ' .. answer.err)
    end
    return answer
  end
end
return 0
