-- Says who holds some locks.
-- KEYS  the locks
-- ARGV  1 id of the request
-- Returns L, id, clock in µs, then for each lock: description, ms left, -1 no end, -2 not held
local micros = clock()
local answer = {'L', ARGV[1], decimal(micros)}
for i, key in ipairs(KEYS) do
  local held = read(key)
  local lock = lock_of(held)
  local over = not held or lock and not is_live(lock, micros / 1000)
  answer[2 * i + 2] = lock and told(lock) or ''
  -- The end as its holder knows it, not that of the second for which others wait longer.
  answer[2 * i + 3] = over and -2 or lock and decimal(math.min(math.max(lock.expiresAtMs - micros / 1000, 0), 9e15))
    or left_of(key)
end
return table.concat(answer, '\n')
