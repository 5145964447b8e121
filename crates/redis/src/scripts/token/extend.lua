-- Moves the ends of several leases. A lock that was taken by a program without fences gets one now.
-- KEYS  1 fence counter, then for each lock: lock, record
-- ARGV  1 nonce, then for each lock: secret, 'L' at least or 'A' add, ms
-- Returns {'E', nonce, then for each lock: fence or '' if it is not held, ms left}
local answer = {'E', ARGV[1]}
for i = 1, (#KEYS - 1) / 2 do
  local lock, beside = KEYS[2 * i], KEYS[2 * i + 1]
  local secret, how, ms = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  answer[2 * i + 1], answer[2 * i + 2] = '', 0
  if read(lock) == secret then
    local record = read(beside)
    if not owned(record, secret) then
      local now = clock()
      local fence, refusal = mint(KEYS[1], now)
      if not fence then return redis.error_reply(refusal) end
      record = 'ht1 ' .. secret .. ' ' .. decimal(fence) .. ' ' .. decimal(now) .. ' '
      remember(beside, record, 0)
    end
    local left = prolong(lock, how, ms)
    redis.call('PEXPIRE', beside, decimal(left + 60000))
    answer[2 * i + 1], answer[2 * i + 2] = fence_of(record), left
  end
end
return answer
