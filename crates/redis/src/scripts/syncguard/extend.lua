-- Moves the ends of several leases.
-- KEYS  for each lock: lock, index of the secret
-- ARGV  1 nonce, then for each lock: secret, 'L' at least or 'A' add, ms
-- Returns {'E', nonce, then for each lock: fence or '' if it is not held, ms left}
local now = math.floor(clock() / 1000)
local answer = {'E', ARGV[1]}
for i = 1, #KEYS / 2 do
  local key, index = KEYS[2 * i - 1], KEYS[2 * i]
  local secret, how, ms = ARGV[3 * i - 1], ARGV[3 * i], tonumber(ARGV[3 * i + 1])
  local lock = lock_of(read(key))
  answer[2 * i + 1], answer[2 * i + 2] = '', 0
  if lock and lock.lockId == secret and is_live(lock, now) then
    local ends = now + ms
    if how == 'A' then ends = math.min(lock.expiresAtMs + ms, now + 86400000) end
    if ends > lock.expiresAtMs then
      lock.expiresAtMs = ends
      store(lock, now, key, index)
    end
    answer[2 * i + 1], answer[2 * i + 2] = lock.fence, math.max(lock.expiresAtMs - now, 0)
  end
end
return answer
