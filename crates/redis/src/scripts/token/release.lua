-- Gives a lock back, or withdraws a waiter.
-- KEYS  1 lock  2 waiters  3 record
-- ARGV  1 nonce  2 secret  3 waiter entry  4 beginning of a channel
-- Returns {'R', nonce} released  {'N', nonce} was not held
local held = read(KEYS[1])
if held == ARGV[2] then
  redis.call('DEL', KEYS[1], KEYS[3])
  wake(KEYS[2], KEYS[1], ARGV[4])
  return {'R', ARGV[1]}
end
redis.pcall('ZREM', KEYS[2], ARGV[3])
if not held then wake(KEYS[2], KEYS[1], ARGV[4]) end
return {'N', ARGV[1]}
