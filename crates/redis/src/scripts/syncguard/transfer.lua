-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter  3 index of the first secret  4 index of the next  5 waiters
-- ARGV  1 id of the request  2 secret that must hold it  3 next secret  4 next lease in ms
-- Returns T, id, fence, ms left, number of waiters  N, id: was not held
local micros = clock()
local now = math.floor(micros / 1000)
local lock = lock_of(read(KEYS[1]))
if not (lock and lock.lockId == ARGV[2] and is_live(lock, now)) then return 'N\n' .. ARGV[1] end
local fence, refusal = count(KEYS[2], micros)
if not fence then return refusal end
lock.lockId, lock.fence, lock.acquiredAtMs = ARGV[3], fence, now
lock.expiresAtMs = now + tonumber(ARGV[4])
redis.call('DEL', KEYS[3])
store(lock, now, KEYS[1], KEYS[4])
local others = redis.pcall('ZCARD', KEYS[5])
return table.concat({'T', ARGV[1], fence, ARGV[4], type(others) == 'number' and others or 0}, '\n')
