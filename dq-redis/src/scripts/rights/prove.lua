-- Runs each command that other scripts run, and leaves nothing behind: a right that is missing is told
-- before there are jobs, not when half of a call is done.
--
-- KEYS     up to three keys that do not exist, for a sorted set, a hash and a list; then any others
-- ARGV     the channel of a queue that does not exist
-- returns  0
-- errors   NOPERM with the command and what Redis says of it; others as they are
-- cost     O(1)

for _, command in ipairs(wanted) do
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then
    -- What there is of these was put there by this script.
    for n = 1, math.min(#KEYS, 3) do
      redis.pcall(({ 'ZREM', 'HDEL', 'LPOP' })[n], KEYS[n], n < 3 and 'x' or 1)
    end
    if string.find(answer.err, 'user executing the script', 1, true) then
      return redis.error_reply('NOPERM ' .. command[1] .. ': ' .. answer.err)
    end
    return answer
  end
end
return 0
