-- Moves the ends of several leases. A lock that was taken by a program without fences gets one now.
-- KEYS  1 fence counter, then for each lock: lock, record
-- ARGV  1 id of the request, then for each lock: secret, 'L' at least or 'A' add and ms
-- Returns E, id, then for each lock: fence or nothing if it is not held, ms left
local answer = {'E', ARGV[1]}
for i = 1, (#KEYS - 1) / 2 do
  local lock, beside, secret = KEYS[2 * i], KEYS[2 * i + 1], ARGV[2 * i]
  answer[2 * i + 1], answer[2 * i + 2] = '', 0
  if read(lock) == secret then
    local record = read(beside)
    if not owned(record, 'ht1 ' .. secret .. ' ') then
      local now = clock()
      local fence, refusal = mint(KEYS[1], now)
      if not fence then return refusal end
      record = 'ht1 ' .. secret .. ' ' .. fence .. ' ' .. decimal(now) .. ' '
      remember(beside, record, 0)
    end
    local left = prolong(lock, ARGV[2 * i + 1])
    redis.call('PEXPIRE', beside, decimal(left + 60000))
    answer[2 * i + 1], answer[2 * i + 2] = fence_of(record), left
  end
end
return table.concat(answer, '\n')
