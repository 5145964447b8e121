-- Gives a lock back, or withdraws a waiter. Two calls if nobody waits.
-- KEYS  1 lock  2 waiters
-- ARGV  1 nonce  2 secret  3 waiter entry  4 beginning of a channel
-- Returns {'R', nonce} released  {'N', nonce} was not held
local held = read(KEYS[1])
if owned(held, ARGV[2]) then
  redis.call('DEL', KEYS[1])
  if awaited(held) then wake(KEYS[2], KEYS[1], ARGV[4]) end
  return {'R', ARGV[1]}
end
redis.pcall('ZREM', KEYS[2], ARGV[3])
-- The waiter that goes may have been woken a moment ago: the wake-up passes on.
if not held then wake(KEYS[2], KEYS[1], ARGV[4]) end
return {'N', ARGV[1]}
