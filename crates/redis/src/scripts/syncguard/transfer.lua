-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter  3 waiters  4 index of the first secret  5 index of the next
-- ARGV  1 nonce  2 secret that must hold it  3 next secret  4 next lease in ms  5 next owner text (no place for it)
-- Returns {'T', nonce, fence, ms left, number of waiters}  {'N', nonce} was not held
local now = math.floor(clock() / 1000)
local lock = lock_of(read(KEYS[1]))
if not (lock and lock.lockId == ARGV[2] and is_live(lock, now)) then return {'N', ARGV[1]} end
local fence, refusal = count(KEYS[2], now)
if not fence then return redis.error_reply(refusal) end
lock.lockId, lock.fence, lock.acquiredAtMs = ARGV[3], fence, now
lock.expiresAtMs = now + tonumber(ARGV[4])
redis.call('DEL', KEYS[4])
store(lock, now, KEYS[1], KEYS[5])
local others = redis.pcall('ZCARD', KEYS[3])
return {'T', ARGV[1], fence, tonumber(ARGV[4]), type(others) == 'number' and others or 0}
