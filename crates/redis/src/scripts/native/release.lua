-- Gives a lock back, or withdraws a waiter.
-- KEYS  1 lock  2 waiters
-- ARGV  1 id of the request  2 beginning of the record
-- Returns R, id: released  N, id: was not held
if type(held) == 'table' then held = read(KEYS[1]) end
if held and string.sub(held, 1, #ARGV[2]) == ARGV[2] then
  redis.call('DEL', KEYS[1])
  wake(KEYS[2], KEYS[1])
  return 'R\n' .. ARGV[1]
end
withdraw(KEYS[2], KEYS[1], string.sub(ARGV[2], 5, -2), not held)
return 'N\n' .. ARGV[1]
