-- What the claim scripts share: see claim.lua, which describes the arguments.

-- How many jobs, and bytes of records, this call may still lease.
local jobs_left, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2])

-- Maximum number of entries that a peek reads in all partitions together.
local MAX_PEEKED = 2000

-- Reads the settings of a partition and ends expired leases. Unlike most scripts, a claim goes on
-- if there are more of them. `refusal` is the item in the reply of a partition that cannot be served.
local function prepare_claim(partition)
  local meta = redis.call('HMGET', partition.meta, 'paused', 'large', 'token', 'format')
  partition.paused, partition.large, partition.last_token = meta[1], meta[2], meta[3]
  partition.format = meta[4]
  partition.refusal = refuse_format(partition.format, 'write')
  if not partition.refusal then
    partition.has_more_expired, partition.refusal = requeue_expired(partition)
  end
end

-- The first fencing token of this call's leases in a partition. Each further one is one more.
local function first_token(partition)
  return math.max((tonumber(partition.last_token or 0) or 0) + 1, now_micros)
end

-- Counts leases, and stores their last token. Sets the end of the leases and the first token in the
-- partition's reply.
local function record_leases(partition, leases, lease_end, token, reply)
  redis.call('HSET', partition.meta, 'token', string.format('%.0f', token + leases - 1))
  reply[2], reply[3] = lease_end, string.format('%.0f', token)
  jobs_left = jobs_left - leases
end

-- The next due time or end of a lease in a partition; false if there is none.
local function next_time(partition)
  local first_due, first_expiry = earliest(partition.due), earliest(partition.lease)
  return first_due and first_expiry and math.min(first_due, first_expiry)
    or first_due or first_expiry or false
end

-- Writes in the index of queues when claims have to look at the partition again. The call has taken
-- effect before, so a key of another type must not make it fail.
local function look_again(partition, time)
  if time then
    redis.pcall('ZADD', QUEUE_INDEX, time, partition.due)
  else
    redis.pcall('ZREM', QUEUE_INDEX, partition.due)
  end
end

-- Serves all partitions of a call and returns the reply. `layout` has these functions:
--   lease(partition, max_jobs, lease_end, reply)  leases due jobs and adds them to the reply; may
--                                                 return the due time of the job after them
--   peek(partition, max_jobs, reply)              adds the due times of the oldest due jobs
--   next_time(partition)                          as next_time above
--   shares(partitions, max_jobs)                  the number of jobs to lease from each partition of
--                                                 one queue; layouts without shards have none
local function serve_partitions(layout)
  local is_peek, updates_index = bytes_left == 0, ARGV[#ARGV] == '1'
  local partitions = math.floor(#KEYS / KEYS_PER_PARTITION)

  local function serve(partition, max_jobs, lease_length)
    if partition.paused then
      return { false }
    end
    local reply, next_due = is_peek and { false } or { false, 0, 0 }, nil
    max_jobs = math.min(max_jobs, jobs_left)
    if max_jobs > 0 and is_peek then
      layout.peek(partition, math.min(max_jobs, math.ceil(MAX_PEEKED / partitions)), reply)
    elseif max_jobs > 0 and bytes_left > 0 then
      next_due = layout.lease(partition, max_jobs, now + lease_length, reply)
    end
    reply[1] = partition.has_more_expired and now or next_due or layout.next_time(partition)
    return reply
  end

  local replies, n = { now }, 0
  while n < partitions do
    local first = 4 + 3 * n
    local max_jobs, lease_length = tonumber(ARGV[first]), tonumber(ARGV[first + 2])
    local of_queue, served = {}, #replies
    repeat
      local partition = partition_at(n)
      catch_wrong_type(prepare_claim, partition)
      of_queue[#of_queue + 1] = partition
      n = n + 1
    until ARGV[4 + 3 * n] ~= ''
    local gate, before = open_gate(of_queue, is_peek), jobs_left
    max_jobs = gate and math.min(max_jobs, jobs_left) or max_jobs
    local wanted = gate and math.min(max_jobs, tonumber(ARGV[first + 1]))
    max_jobs = gate and gate.allowed(max_jobs, wanted) or max_jobs
    local admits = gate and gate.group_max and not is_peek
    local share = admits and gate.admit(max_jobs, wanted)
      or #of_queue == 1 and { max_jobs } or layout.shares(of_queue, max_jobs)
    for i, partition in ipairs(of_queue) do
      local reply = catch_wrong_type(serve, partition, share[i], lease_length)
      partition.next, replies[served + i] = reply and reply[1], reply or partition.refusal
      partition.reply = reply
    end
    if admits then
      gate.count_begun()
    end
    if gate then
      local started = before - jobs_left
      gate.pass(started, started < wanted)
    end
    for i, partition in ipairs(of_queue) do
      if not partition.refusal then
        replies[served + i][1] = partition.next
        if updates_index then
          local time = partition.look_at
          look_again(partition, time == nil and partition.next or time)
        end
      end
    end
  end
  return replies
end
