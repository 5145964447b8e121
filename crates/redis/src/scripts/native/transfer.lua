-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter
-- ARGV  1 id of the request  2 beginning of the record  3 beginning of the next  4 next lease in ms  5 next owner text
-- Returns T, id, fence, ms left, 1 if others wait, else 0  N, id: was not held
if not last then
  -- An error other than a value of another type ends the step here.
  read(KEYS[1])
  -- Done before, by a request whose answer was lost: the same grant, with its fence.
  if type(held) == 'string' and string.sub(held, 1, #ARGV[3]) == ARGV[3] then
    local fence, left = string.match(held, '^%d+', #ARGV[3] + 1), redis.call('PTTL', KEYS[1])
    if fence then
      if left >= 0 and left < tonumber(ARGV[4]) then
        redis.call('PEXPIRE', KEYS[1], ARGV[4])
        left = ARGV[4]
      end
      return 'T\n' .. ARGV[1] .. '\n' .. fence .. '\n' .. left .. (string.byte(held, -1) == 10 and '\n1' or '\n0')
    end
  end
  return 'N\n' .. ARGV[1]
end
local minted, refusal = mint_after(last, KEYS[2], 1, tonumber(clock))
if not minted then return refusal end
local fence, mark = decimal(minted), string.byte(held, -1) == 10 and '\n' or ''
redis.call('SET', KEYS[1], ARGV[3] .. fence .. ' ' .. clock .. ' ' .. ARGV[5] .. mark, 'PX', ARGV[4])
return 'T\n' .. ARGV[1] .. '\n' .. fence .. '\n' .. ARGV[4] .. '\n' .. #mark
