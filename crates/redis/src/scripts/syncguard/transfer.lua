-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter  3 index of the first secret  4 index of the next  5 waiters
-- ARGV  1 id of the request  2 secret that must hold it  3 next secret  4 next lease in ms
-- Returns T, id, fence, ms left, number of waiters  N, id: was not held
local micros = clock()
local now = math.floor(micros / 1000)
local lock = lock_of(read(KEYS[1]))
if not (lock and is_live(lock, now)) then return 'N\n' .. ARGV[1] end
if not has_room(KEYS[4], KEYS[1]) then return meets() end
local ends = now + tonumber(ARGV[4])
if lock.lockId == ARGV[3] then
  -- Done before, by a request whose answer was lost: the same grant, with its fence.
  lock.expiresAtMs = math.max(lock.expiresAtMs, ends)
elseif lock.lockId == ARGV[2] then
  local fence, refusal = count(KEYS[2], micros)
  if not fence then return refusal end
  lock.lockId, lock.fence, lock.acquiredAtMs, lock.expiresAtMs = ARGV[3], fence, now, ends
  if read(KEYS[3]) == KEYS[1] then redis.call('DEL', KEYS[3]) end
else
  return 'N\n' .. ARGV[1]
end
store(lock, now, KEYS[1], KEYS[4])
local others = redis.pcall('ZCARD', KEYS[5])
return table.concat({'T', ARGV[1], lock.fence, lock.expiresAtMs - now, type(others) == 'number' and others or 0}, '\n')
