-- Waiters stand in a sorted set by the time they came. An entry is 'CLIENT:SECRET'; the client is the first 22
-- characters of a request's id; `now` is in digits. The set lives 30 s longer than the last attempt of any of them.
local function entry(secret)
  return string.sub(ARGV[1], 1, 22) .. ':' .. secret
end

local function enqueue(waiters, now, secret)
  local mine = entry(secret)
  if redis.pcall('ZADD', waiters, 'NX', now, mine) == 0 then
    -- If it was woken and somebody else was quicker, it keeps its place, and is to be woken again.
    local came = tonumber(redis.pcall('ZADD', waiters, 'XX', 'INCR', '0', mine))
    if came and came % 1 ~= 0 then redis.pcall('ZADD', waiters, 'XX', decimal(came - 0.5), mine) end
  end
  redis.pcall('PEXPIRE', waiters, '30000')
end

-- Who was woken and has the right of way: see `wake.lua`. Not among KEYS, though it is of the same slot and prefix: it is
-- nearly always absent, and while a slot moves, a request that names one key which is there and one which is not is refused.
local function heir_of(waiters)
  local before, rest = string.match(waiters, '^([^\1]*\1)wait(.*)$')
  return before .. 'heir' .. rest
end

-- How many ms somebody of another program has the right of way before one who stands in line, in digits; nil if nobody has.
local function precedence(waiters)
  local name = heir_of(waiters)
  local heir = redis.pcall('GET', name)
  if type(heir) ~= 'string' or string.sub(heir, 1, 22) == string.sub(ARGV[1], 1, 22) then return end
  local left = redis.pcall('PTTL', name)
  return type(left) == 'number' and left > 0 and decimal(left) or nil
end

-- Takes one who was granted out of the set. Answers how many are left, -1 if that cannot be told.
local function dequeue(waiters, secret)
  redis.pcall('ZREM', waiters, entry(secret))
  redis.pcall('DEL', heir_of(waiters))
  local others = redis.pcall('ZCARD', waiters)
  return type(others) == 'number' and others or -1
end
