-- Says who holds some locks.
-- KEYS  the locks
-- ARGV  1 id of the request
-- Returns L, id, clock in µs, then for each lock: description, ms left, -1 no end, -2 not held
local answer = {'L', ARGV[1], decimal(clock())}
for i, lock in ipairs(KEYS) do
  answer[2 * i + 2] = described(read(lock))
  answer[2 * i + 3] = left_of(lock)
end
return table.concat(answer, '\n')
