-- Says who holds some locks.
-- KEYS  the locks
-- ARGV  1 nonce
-- Returns {'L', nonce, clock in µs, then for each lock: description, ms left, -1 no end, -2 not held}
local answer = {'L', ARGV[1], decimal(clock())}
for i, lock in ipairs(KEYS) do
  answer[2 * i + 2] = described(read(lock))
  answer[2 * i + 3] = redis.call('PTTL', lock)
end
return answer
