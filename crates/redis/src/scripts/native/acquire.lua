-- Takes a lock, or says who has it. Three calls for a grant.
-- KEYS  1 lock  2 fence counter  3 waiters
-- ARGV  1 nonce  2 secret  3 lease in ms  4 owner text
--       5 queue: 0 no, 1 yes, 2 yes and an entry may exist  6 waiter entry  7 how long it lives, ms
-- Returns {'G', nonce, fence, ms left, number of other waiters or -1 if nobody looked}
--         {'B', nonce, ms left or -1, clock in µs, description}
local now = clock()
local fence, refusal = mint(KEYS[2], now)
if not fence then return redis.error_reply(refusal) end

local record = 'ht1 ' .. ARGV[2] .. ' ' .. decimal(fence) .. ' ' .. decimal(now) .. ' ' .. ARGV[4]
local held = redis.pcall('SET', KEYS[1], record, 'NX', 'PX', ARGV[3], 'GET')
if type(held) == 'table' then
  -- A value of another type, or a Redis before 7, which does not take NX and GET together. If it was another
  -- error, it comes again and ends the attempt.
  held = read(KEYS[1])
  if not held then redis.call('SET', KEYS[1], record, 'PX', ARGV[3]) end
end

local mine = owned(held, ARGV[2])
if held and not mine then
  local description = described(held)
  if ARGV[5] ~= '0' and description ~= '' then
    redis.pcall('ZADD', KEYS[3], 'NX', decimal(now), ARGV[6])
    redis.pcall('PEXPIRE', KEYS[3], ARGV[7])
    if not awaited(held) then redis.pcall('APPEND', KEYS[1], '\n') end
  end
  return {'B', ARGV[1], redis.call('PTTL', KEYS[1]), decimal(now), description}
end

local left = ARGV[3]
if mine then
  fence, left = fence_of(held), prolong(KEYS[1], 'L', ARGV[3])
else
  fence = decimal(fence)
end
local others = -1
if ARGV[5] == '2' then
  redis.pcall('ZREM', KEYS[3], ARGV[6])
  others = redis.pcall('ZCARD', KEYS[3])
  if type(others) ~= 'number' then others = -1 end
  if others > 0 and not (mine and awaited(held)) then redis.pcall('APPEND', KEYS[1], '\n') end
end
return {'G', ARGV[1], fence, tonumber(left), others}
