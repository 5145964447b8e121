-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter  3 waiters (the mark in the record tells of them)
-- ARGV  1 nonce  2 secret that must hold it  3 next secret  4 next lease in ms  5 next owner text
-- Returns {'T', nonce, fence, ms left, 1 if others wait, else 0}  {'N', nonce} was not held
local held = read(KEYS[1])
if not owned(held, ARGV[2]) then return {'N', ARGV[1]} end
local now = clock()
local fence, refusal = mint(KEYS[2], now)
if not fence then return redis.error_reply(refusal) end
local mark = awaited(held) and '\n' or ''
local record = 'ht1 ' .. ARGV[3] .. ' ' .. decimal(fence) .. ' ' .. decimal(now) .. ' ' .. ARGV[5] .. mark
redis.call('SET', KEYS[1], record, 'PX', ARGV[4])
return {'T', ARGV[1], decimal(fence), tonumber(ARGV[4]), #mark}
