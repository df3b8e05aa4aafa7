-- The arguments of scripts that store jobs, and their answers: see schedule.lua.

-- A client's estimate of the time may be this much too early, in milliseconds.
local MAX_CLOCK_LAG = 1000

-- Reads the arguments of a call. A job has `columns` values of the layout; those of column
-- `record_column` are records (or record prefixes). Changes ARGV: due times replace delays, and a wrong
-- estimate in records is corrected. Returns a table:
--   count           the number of jobs
--   has_duplicates  whether two of the jobs may be the same, or have the same key
--   has_large       whether a record is large
--   handles, dues   the positions in ARGV before the handles and before the due times
--   columns         the positions in ARGV before each column
--   remember_of     by the number of a job: the milliseconds for which its id is to be pinned
--   key_of          by the number of a job: its key
--   keys, last_key  the positions in ARGV before the first key, and of the last one
--   pins_ids        whether any id is to be pinned
local function read_new_jobs(columns, record_column)
  local args, flags, count = ARGV, ARGV[2], tonumber(ARGV[3])
  read_history_limit(args[5], args[6])
  local handles = 6
  local new = {
    count = count, handles = handles, dues = handles + (1 + columns) * count, columns = {},
    remember_of = {}, key_of = {}, pins_ids = false,
    has_duplicates = string.find(flags, '=', 1, true) ~= nil,
    has_large = string.find(flags, 'L', 1, true) ~= nil,
  }
  for column = 1, columns do
    new.columns[column] = handles + column * count
  end
  if string.find(flags, '+', 1, true) then
    for i = new.dues + 1, new.dues + count do
      args[i] = resolve_due(args[i])
    end
  end
  local estimate, records = tonumber(args[4]), new.columns[record_column]
  if estimate > now or estimate < now - MAX_CLOCK_LAG then
    local accepted = struct.pack('>I6', now)
    for i = records + 1, records + count do
      args[i] = accepted .. string.sub(args[i], 7)
    end
  end
  local remember_at = new.dues + count
  for number = 1, count do
    if is_to_be_pinned(args[records + number]) then
      remember_at = remember_at + 1
      new.remember_of[number], new.pins_ids = tonumber(args[remember_at]), true
    end
  end
  local keys = (#args - remember_at) / 2
  new.keys, new.last_key = remember_at, remember_at + keys
  for i = new.keys + 1, new.last_key do
    new.key_of[tonumber(args[i + keys])] = args[i]
  end
  return new
end

-- Adds an answer to the reply of a call: see schedule.lua.
local function add_answer(answers, number, code, id, due)
  local length = #answers
  answers[length + 1], answers[length + 2] = number, code
  answers[length + 3], answers[length + 4] = id, due
end

-- What happens to a new job whose key a live job has: 'A' the new one is dropped, since the live one
-- runs; 'detach' the live one runs and loses the key; 'K' the new one is dropped; 'R' it replaces
-- the live one. `record` is that of the new job.
local function key_conflict(record, due, live_due, live_is_leased)
  local flags = string.byte(record, RECORD_BYTES)
  if live_is_leased then
    return flags >= DETACH and 'detach' or 'A'
  end
  local policy = math.floor(flags / 16) % 4
  local replaces = policy == 1 or (policy == 2 and due < live_due)
    or (policy == 3 and due > live_due)
  return replaces and 'R' or 'K'
end
