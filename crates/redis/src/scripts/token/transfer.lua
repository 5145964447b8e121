-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter  3 waiters  4 record
-- ARGV  1 nonce  2 secret that must hold it  3 next secret  4 next lease in ms  5 next owner text
-- Returns {'T', nonce, fence, ms left, number of waiters}  {'N', nonce} was not held
if read(KEYS[1]) ~= ARGV[2] then return {'N', ARGV[1]} end
local now = clock()
local fence, refusal = mint(KEYS[2], now)
if not fence then return redis.error_reply(refusal) end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
local record = 'ht1 ' .. ARGV[3] .. ' ' .. decimal(fence) .. ' ' .. decimal(now) .. ' ' .. ARGV[5]
remember(KEYS[4], record, tonumber(ARGV[4]))
local others = redis.pcall('ZCARD', KEYS[3])
return {'T', ARGV[1], decimal(fence), tonumber(ARGV[4]), type(others) == 'number' and others or 0}
