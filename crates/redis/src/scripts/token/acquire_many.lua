-- Takes several locks or none; their values are the bare secrets.
-- KEYS  1 fence counter, then for each lock, each once: lock, record
-- ARGV  1 id of the request, then for each lock: secret, lease in ms, owner text
-- Returns M, id, then for each lock: fence, ms left
--         B, id, number of the busy lock from 1, ms left or -1, clock in µs, description
local now = clock()
local many = (#KEYS - 1) / 2
local held, records = {}, {}
for i = 1, many do
  held[i] = read(KEYS[2 * i])
  records[i] = held[i] and read(KEYS[2 * i + 1])
  if held[i] and held[i] ~= ARGV[3 * i - 1] then
    local description = owned(records[i], 'ht1 ' .. held[i] .. ' ') and described(records[i]) or ''
    return table.concat({'B', ARGV[1], i, left_of(KEYS[2 * i]), decimal(now), description}, '\n')
  end
end
local answer = {'M', ARGV[1]}
for i = 1, many do
  local lock, beginning = KEYS[2 * i], 'ht1 ' .. ARGV[3 * i - 1] .. ' '
  local left, fence, refusal = ARGV[3 * i], nil, nil
  if owned(records[i], beginning) then
    fence = fence_of(records[i])
  else
    fence, refusal = mint(KEYS[1], now)
    if not fence then
      -- Nothing stays half taken.
      for taken = 1, i - 1 do
        if not held[taken] then redis.call('DEL', KEYS[2 * taken], KEYS[2 * taken + 1]) end
      end
      return refusal
    end
    records[i] = beginning .. fence .. ' ' .. decimal(now) .. ' ' .. ARGV[3 * i + 1]
  end
  if held[i] then
    left = prolong(lock, 'L' .. left)
  else
    redis.call('SET', lock, ARGV[3 * i - 1], 'PX', left)
  end
  remember(KEYS[2 * i + 1], records[i], left)
  answer[2 * i + 1], answer[2 * i + 2] = fence, left
end
return table.concat(answer, '\n')
