-- Moves the ends of several leases.
-- KEYS  the locks
-- ARGV  1 id of the request, then for each lock: beginning of the record, 'L' at least or 'A' add and ms
-- Returns E, id, then for each lock: fence or nothing if it is not held, ms left
local answer = {'E', ARGV[1]}
for i, lock in ipairs(KEYS) do
  local held = read(lock)
  local mine = owned(held, ARGV[2 * i])
  answer[2 * i + 1] = mine and fence_of(held) or ''
  answer[2 * i + 2] = mine and prolong(lock, ARGV[2 * i + 1]) or 0
end
return table.concat(answer, '\n')
