-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter
-- ARGV  1 id of the request  2 beginning of the record  3 beginning of the next  4 next lease in ms  5 next owner text
-- Returns T, id, fence, ms left, 1 if others wait, else 0  N, id: was not held
if not last then
  -- An error other than a value of another type ends the step here.
  read(KEYS[1])
  return 'N\n' .. ARGV[1]
end
local minted, refusal = mint_after(last, KEYS[2], 1, tonumber(clock))
if not minted then return refusal end
local fence, mark = decimal(minted), string.byte(held, -1) == 10 and '\n' or ''
redis.call('SET', KEYS[1], ARGV[3] .. fence .. ' ' .. clock .. ' ' .. ARGV[5] .. mark, 'PX', ARGV[4])
return 'T\n' .. ARGV[1] .. '\n' .. fence .. '\n' .. ARGV[4] .. '\n' .. #mark
