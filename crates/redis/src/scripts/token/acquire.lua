-- Takes a lock whose value is the bare secret; fence and owner stand in a record beside it.
-- KEYS  1 lock  2 fence counter  3 record  4 waiters, unless the caller does not wait
-- ARGV  1 id of the request  2 secret  3 lease in ms  4 owner text
--       5 'again', only if the caller may stand among the waiters
-- Returns G, id, fence, ms left, number of other waiters or -1 if nobody looked
--         B, id, ms left or -1, clock in µs, description
local now = clock()
local held = read(KEYS[1])
local record = held and read(KEYS[3])
if held and held ~= ARGV[2] then
  local description = owned(record, 'ht1 ' .. held .. ' ') and described(record) or ''
  if KEYS[4] and description ~= '' then enqueue(KEYS[4], decimal(now), ARGV[2]) end
  return table.concat({'B', ARGV[1], left_of(KEYS[1]), decimal(now), description}, '\n')
end
local waits = not held and KEYS[4] and precedence(KEYS[4])
if waits then
  enqueue(KEYS[4], decimal(now), ARGV[2])
  return table.concat({'B', ARGV[1], waits, decimal(now), ''}, '\n')
end

local beginning = 'ht1 ' .. ARGV[2] .. ' '
local left, fence, refusal = ARGV[3], nil, nil
if owned(record, beginning) then
  fence, left = fence_of(record), prolong(KEYS[1], 'L' .. ARGV[3])
else
  -- Free, or taken with this secret by a program that mints no fences.
  fence, refusal = mint(KEYS[2], now)
  if not fence then return refusal end
  if held then
    left = prolong(KEYS[1], 'L' .. ARGV[3])
  else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  end
  record = beginning .. fence .. ' ' .. decimal(now) .. ' ' .. ARGV[4]
end
remember(KEYS[3], record, left)
return table.concat({'G', ARGV[1], fence, left, ARGV[5] and dequeue(KEYS[4], ARGV[2]) or -1}, '\n')
