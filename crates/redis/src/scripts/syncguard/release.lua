-- Gives a lock back, or withdraws a waiter.
-- KEYS  1 lock  2 waiters  3 index of the secret
-- ARGV  1 id of the request  2 secret
-- Returns R, id: released  N, id: was not held
local held = read(KEYS[1])
local lock = lock_of(held)
if lock and lock.lockId == ARGV[2] and is_live(lock, math.floor(clock() / 1000)) then
  -- If the index was lost, another lock may stand in its place.
  if read(KEYS[3]) == KEYS[1] then redis.call('DEL', KEYS[3]) end
  redis.call('DEL', KEYS[1])
  wake(KEYS[2], KEYS[1])
  return 'R\n' .. ARGV[1]
end
withdraw(KEYS[2], KEYS[1], ARGV[2], not held)
return 'N\n' .. ARGV[1]
