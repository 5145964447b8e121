-- Gives a lock back, or withdraws a waiter.
-- KEYS  1 lock  2 waiters  3 record
-- ARGV  1 id of the request  2 secret
-- Returns R, id: released  N, id: was not held
local held = read(KEYS[1])
if held == ARGV[2] then
  redis.call('DEL', KEYS[1], KEYS[3])
  wake(KEYS[2], KEYS[1])
  return 'R\n' .. ARGV[1]
end
withdraw(KEYS[2], KEYS[1], ARGV[2], not held)
return 'N\n' .. ARGV[1]
