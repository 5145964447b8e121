-- Takes a lock in the format of syncguard, or says who has it.
-- KEYS  1 lock  2 fence counter  3 waiters  4 index of the secret
-- ARGV  1 nonce  2 secret  3 lease in ms  4 owner text (the format has no place for it)
--       5 queue: 0 no, 1 yes, 2 yes and an entry may exist  6 waiter entry  7 how long it lives, ms  8 user key
-- Returns {'G', nonce, fence, ms left, number of other waiters or -1 if nobody looked}
--         {'B', nonce, ms left or -1, clock in µs, description}
local micros = clock()
local now = math.floor(micros / 1000)
local held = read(KEYS[1])
local lock = lock_of(held)
-- What cannot be read is somebody else's lock, for as long as it is there.
local live = held and (not lock or is_live(lock, now))
if live and not (lock and lock.lockId == ARGV[2]) then
  if ARGV[5] ~= '0' and lock then
    redis.pcall('ZADD', KEYS[3], 'NX', decimal(micros), ARGV[6])
    redis.pcall('PEXPIRE', KEYS[3], ARGV[7])
  end
  return {'B', ARGV[1], redis.call('PTTL', KEYS[1]), decimal(micros), lock and told(lock) or ''}
end

local ends = now + tonumber(ARGV[3])
if live then
  lock.expiresAtMs = math.max(lock.expiresAtMs, ends)
else
  local fence, refusal = count(KEYS[2], now)
  if not fence then return redis.error_reply(refusal) end
  lock = {lockId = ARGV[2], key = ARGV[8], fence = fence, acquiredAtMs = now, expiresAtMs = ends}
end
store(lock, now, KEYS[1], KEYS[4])
local others = -1
if ARGV[5] == '2' then
  redis.pcall('ZREM', KEYS[3], ARGV[6])
  others = redis.pcall('ZCARD', KEYS[3])
  if type(others) ~= 'number' then others = -1 end
end
return {'G', ARGV[1], lock.fence, lock.expiresAtMs - now, others}
