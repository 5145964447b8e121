-- Takes a lock, or says who has it.
-- KEYS  1 lock  2 fence counter  3 waiters, unless the caller does not wait
-- ARGV  1 id of the request  2 beginning of the record  3 lease in ms  4 owner text
--       5 'again', only if the caller may stand among the waiters
-- Returns G or B, id, and the fields that `take.lua` tells of
local fence = clock
if not settled then
  local minted, refusal = mint_after(last, KEYS[2], 1, tonumber(clock))
  if not minted then return refusal end
  fence, held = decimal(minted), {}
end
local record = ARGV[2] .. fence .. ' ' .. clock .. ' ' .. ARGV[4]
local letter, fields = take(KEYS[1], KEYS[3], record, held, fence, clock, ARGV[2], ARGV[3])
return letter .. '\n' .. ARGV[1] .. '\n' .. fields
