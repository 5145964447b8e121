-- Waiters stand in a sorted set by the time they came. An entry is 'CLIENT:SECRET'; the client is the first 22
-- characters of a request's id; `now` is in digits. The set lives 30 s longer than the last attempt of any of them.
local function entry(secret)
  return string.sub(ARGV[1], 1, 22) .. ':' .. secret
end

local function enqueue(waiters, now, secret)
  redis.pcall('ZADD', waiters, 'NX', now, entry(secret))
  redis.pcall('PEXPIRE', waiters, '30000')
end

-- Takes one who was granted out of the set. Answers how many are left, -1 if that cannot be told.
local function dequeue(waiters, secret)
  redis.pcall('ZREM', waiters, entry(secret))
  local others = redis.pcall('ZCARD', waiters)
  return type(others) == 'number' and others or -1
end
