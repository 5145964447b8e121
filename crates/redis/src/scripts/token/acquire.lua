-- Takes a lock whose value is the bare secret; fence and owner stand in a record beside it.
-- KEYS  1 lock  2 fence counter  3 waiters  4 record
-- ARGV  1 nonce  2 secret  3 lease in ms  4 owner text
--       5 queue: 0 no, 1 yes, 2 yes and an entry may exist  6 waiter entry  7 how long it lives, ms
-- Returns {'G', nonce, fence, ms left, number of other waiters or -1 if nobody looked}
--         {'B', nonce, ms left or -1, clock in µs, description}
local now = clock()
local held = read(KEYS[1])
local record = held and read(KEYS[4])
if held and held ~= ARGV[2] then
  local description = owned(record, held) and described(record) or ''
  if ARGV[5] ~= '0' and description ~= '' then
    redis.pcall('ZADD', KEYS[3], 'NX', decimal(now), ARGV[6])
    redis.pcall('PEXPIRE', KEYS[3], ARGV[7])
  end
  return {'B', ARGV[1], redis.call('PTTL', KEYS[1]), decimal(now), description}
end

local left, fence = tonumber(ARGV[3]), nil
if owned(record, ARGV[2]) then
  fence, left = fence_of(record), prolong(KEYS[1], 'L', ARGV[3])
else
  -- Free, or taken with this secret by a program that mints no fences.
  local number, refusal = mint(KEYS[2], now)
  if not number then return redis.error_reply(refusal) end
  fence = decimal(number)
  if held then
    left = prolong(KEYS[1], 'L', ARGV[3])
  else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  end
  record = 'ht1 ' .. ARGV[2] .. ' ' .. fence .. ' ' .. decimal(now) .. ' ' .. ARGV[4]
end
remember(KEYS[4], record, left)
local others = -1
if ARGV[5] == '2' then
  redis.pcall('ZREM', KEYS[3], ARGV[6])
  others = redis.pcall('ZCARD', KEYS[3])
  if type(others) ~= 'number' then others = -1 end
end
return {'G', ARGV[1], fence, left, others}
