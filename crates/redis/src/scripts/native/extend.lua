-- Moves the ends of several leases.
-- KEYS  the locks
-- ARGV  1 nonce, then for each lock: secret, 'L' at least or 'A' add, ms
-- Returns {'E', nonce, then for each lock: fence or '' if it is not held, ms left}
local answer = {'E', ARGV[1]}
for i, lock in ipairs(KEYS) do
  local secret, how, ms = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local held = read(lock)
  local mine = owned(held, secret)
  answer[2 * i + 1] = mine and fence_of(held) or ''
  answer[2 * i + 2] = mine and prolong(lock, how, ms) or 0
end
return answer
