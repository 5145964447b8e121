-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter  3 waiters (the mark in the record tells of them)
-- ARGV  1 id of the request  2 beginning of the record  3 beginning of the next  4 next lease in ms  5 next owner text
-- Returns T, id, fence, ms left, 1 if others wait, else 0  N, id: was not held
local held = read(KEYS[1])
if not owned(held, ARGV[2]) then return 'N\n' .. ARGV[1] end
local now = clock()
local fence, refusal = mint(KEYS[2], now)
if not fence then return refusal end
local mark = awaited(held) and '\n' or ''
redis.call('SET', KEYS[1], ARGV[3] .. fence .. ' ' .. decimal(now) .. ' ' .. ARGV[5] .. mark, 'PX', ARGV[4])
return table.concat({'T', ARGV[1], fence, ARGV[4], #mark}, '\n')
