-- Takes several locks or none.
-- KEYS  1 fence counter, then the locks, each once
-- ARGV  1 nonce, then for each lock: secret, lease in ms, owner text
-- Returns {'M', nonce, then for each lock: fence, ms left}
--         {'B', nonce, number of the busy lock from 1, ms left or -1, clock in µs, description}
local now = clock()
local held = {}
for i = 2, #KEYS do
  held[i] = read(KEYS[i])
  if held[i] and not owned(held[i], ARGV[3 * i - 4]) then
    return {'B', ARGV[1], i - 1, redis.call('PTTL', KEYS[i]), decimal(now), described(held[i])}
  end
end
local answer = {'M', ARGV[1]}
for i = 2, #KEYS do
  local secret, ttl, owner = ARGV[3 * i - 4], ARGV[3 * i - 3], ARGV[3 * i - 2]
  if held[i] then
    answer[2 * i - 1], answer[2 * i] = fence_of(held[i]), prolong(KEYS[i], 'L', ttl)
  else
    local fence, refusal = mint(KEYS[1], now)
    if not fence then
      -- Nothing stays half taken.
      for taken = 2, i - 1 do
        if not held[taken] then redis.call('DEL', KEYS[taken]) end
      end
      return redis.error_reply(refusal)
    end
    local record = 'ht1 ' .. secret .. ' ' .. decimal(fence) .. ' ' .. decimal(now) .. ' ' .. owner
    redis.call('SET', KEYS[i], record, 'PX', ttl)
    answer[2 * i - 1], answer[2 * i] = decimal(fence), tonumber(ttl)
  end
end
return answer
