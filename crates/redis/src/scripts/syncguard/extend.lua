-- Moves the ends of several leases.
-- KEYS  for each lock: lock, index of the secret
-- ARGV  1 id of the request, then for each lock: secret, 'L' at least or 'A' add and ms
-- Returns E, id, then for each lock: fence or nothing if it is not held, ms left
local now = math.floor(clock() / 1000)
local answer = {'E', ARGV[1]}
for i = 1, #KEYS / 2 do
  local key, index = KEYS[2 * i - 1], KEYS[2 * i]
  local secret, how, ms = ARGV[2 * i], string.sub(ARGV[2 * i + 1], 1, 1), tonumber(string.sub(ARGV[2 * i + 1], 2))
  local lock = lock_of(read(key))
  answer[2 * i + 1], answer[2 * i + 2] = '', 0
  if lock and lock.lockId == secret and is_live(lock, now) then
    local ends = now + ms
    if how == 'A' then ends = math.min(lock.expiresAtMs + ms, now + 86400000) end
    if ends > lock.expiresAtMs then
      -- A server whose memory is full lets a script go on that has begun to write, and a new end is a write that it
      -- always takes. Without it the lock could not be renewed.
      redis.call('PEXPIRE', key, decimal(ends - now + 1000))
      lock.expiresAtMs = ends
      store(lock, now, key, has_room(index, key) and index)
    end
    answer[2 * i + 1], answer[2 * i + 2] = lock.fence, decimal(math.max(lock.expiresAtMs - now, 0))
  end
end
return table.concat(answer, '\n')
