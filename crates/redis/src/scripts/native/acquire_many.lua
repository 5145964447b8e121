-- Takes several locks or none.
-- KEYS  1 fence counter, then the locks, each once
-- ARGV  1 id of the request, then for each lock: beginning of the record, lease in ms, owner text
-- Returns M, id, then for each lock: fence, ms left
--         B, id, number of the busy lock from 1, ms left or -1, clock in µs, description
local now = clock()
local held = {}
for i = 2, #KEYS do
  held[i] = read(KEYS[i])
  if held[i] and not owned(held[i], ARGV[3 * i - 4]) then
    return table.concat({'B', ARGV[1], i - 1, left_of(KEYS[i]), decimal(now), described(held[i])}, '\n')
  end
end
local answer = {'M', ARGV[1]}
for i = 2, #KEYS do
  local beginning, ttl, owner = ARGV[3 * i - 4], ARGV[3 * i - 3], ARGV[3 * i - 2]
  if held[i] then
    answer[2 * i - 1], answer[2 * i] = fence_of(held[i]), prolong(KEYS[i], 'L' .. ttl)
  else
    local fence, refusal = mint(KEYS[1], now)
    if not fence then
      -- Nothing stays half taken.
      for taken = 2, i - 1 do
        if not held[taken] then redis.call('DEL', KEYS[taken]) end
      end
      return refusal
    end
    redis.call('SET', KEYS[i], beginning .. fence .. ' ' .. decimal(now) .. ' ' .. owner, 'PX', ttl)
    answer[2 * i - 1], answer[2 * i] = fence, ttl
  end
end
return table.concat(answer, '\n')
