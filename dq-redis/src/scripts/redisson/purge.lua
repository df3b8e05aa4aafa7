-- Removes waiting and dead jobs of one queue, some at a time: native jobs, then members of
-- Redisson's sorted set, then payloads in the destination list. (Words: see java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     the limit of the history: jobs, milliseconds; maximum number of jobs
-- returns  nil: repeat the call; else how many were removed, 0 when nothing remains
-- cost     O(log n) a job; with visibility `exact` O(length of the order list)

local partition = redisson_partition_at(0)
local stop, refusal = requeue_expired(partition, 'write')
if stop then
  return refusal
end

read_history_limit(ARGV[1], ARGV[2])
check_ended_keys(partition)
check_types_of_job(partition)
-- `clear` uses these only after it has removed waiting jobs.
redis.call('ZCARD', partition.dead)
redis.call('HSTRLEN', partition.reason, '')
order_length(partition)
local limit, removed = clear(partition, tonumber(ARGV[3]))
if removed < limit then
  local max = math.min(limit - removed, max_per_call(partition))
  local entries = redis.call('ZRANGE', partition.timeout, 0, max - 1, 'WITHSCORES')
  for i = 1, #entries, 2 do
    local member, due = entries[i], score_time(entries[i + 1])
    local _, member_id = parse(member)
    local entry = member_id and unpack_entry(member_id, redis.call('HGET', partition.index, member_id))
    if entry then
      entry.member, entry.due = member, due
      end_member(partition, entry, 'M')
    else
      if member_id then
        local handle, tail = handle_and_tail(member_id)
        add_ended_unleased(partition, handle, 'M', java_record(tail, ''), due, '')
      end
      redis.call('ZREM', partition.timeout, member)
      remove_from_order(partition, { member }, { member_id or '' })
    end
    removed = removed + 1
  end
  if redis.call('ZCARD', partition.timeout) == 0 then
    -- No member waits, so all entries of the order list are garbage. With visibility `hidden` a key
    -- of another type counts as empty (see order_length): it is foreign, and stays.
    if order_length(partition) > 0 then
      redis.call('UNLINK', partition.order)
    end
    redis.call('HDEL', partition.meta, 'garbage')
    -- What is left in the index are entries of jobs that Java took. Each may own a key and a state
    -- (see remove_entry), so they are removed one by one, some in each call.
    sweep_index(partition)
  end
end
if removed < limit then
  removed = removed + #(redis.call('LPOP', partition.destination, limit - removed) or {})
end
flush_ended(partition)
return removed
