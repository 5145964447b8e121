-- Takes a lock, or says who has it.
-- KEYS  1 lock  2 fence counter  3 waiters, unless the caller does not wait
-- ARGV  1 id of the request  2 beginning of the record  3 lease in ms  4 owner text
--       5 'again', only if the caller may stand among the waiters
-- Returns G, id, fence, ms left, number of other waiters or -1 if nobody looked
--         B, id, ms left or -1, clock in µs, description
local fence, refusal = clock, nil
if not settled then
  fence, refusal = mint_after(last, KEYS[2])
  if not fence then return refusal end
  held = {}
end
local record = ARGV[2] .. fence .. ' ' .. clock .. ' ' .. ARGV[4]
if type(held) == 'table' then
  -- Not asked yet; or a value of another type, or a Redis before 7, which does not take NX and GET together. If it
  -- was another error, it comes again and ends the attempt.
  held = read(KEYS[1])
  if not held then redis.call('SET', KEYS[1], record, 'PX', ARGV[3]) end
end

local secret = string.sub(ARGV[2], 5, -2)
local mine = owned(held, ARGV[2])
if held and not mine then
  local description = described(held)
  if KEYS[3] and description ~= '' then
    enqueue(KEYS[3], clock, secret)
    if not awaited(held) then redis.pcall('APPEND', KEYS[1], '\n') end
  end
  return table.concat({'B', ARGV[1], left_of(KEYS[1]), clock, description}, '\n')
end

local left = ARGV[3]
if mine then
  fence, left = fence_of(held), prolong(KEYS[1], 'L' .. ARGV[3])
end
local others = -1
if ARGV[5] then
  others = dequeue(KEYS[3], secret)
  if others > 0 and not (mine and awaited(held)) then redis.pcall('APPEND', KEYS[1], '\n') end
end
return table.concat({'G', ARGV[1], fence, left, others}, '\n')
