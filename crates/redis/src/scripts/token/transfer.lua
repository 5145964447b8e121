-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter  3 record  4 waiters
-- ARGV  1 id of the request  2 secret that must hold it  3 next secret  4 next lease in ms  5 next owner text
-- Returns T, id, fence, ms left, number of waiters  N, id: was not held
if read(KEYS[1]) ~= ARGV[2] then return 'N\n' .. ARGV[1] end
local now = clock()
local fence, refusal = mint(KEYS[2], now)
if not fence then return refusal end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
remember(KEYS[3], 'ht1 ' .. ARGV[3] .. ' ' .. fence .. ' ' .. decimal(now) .. ' ' .. ARGV[5], tonumber(ARGV[4]))
local others = redis.pcall('ZCARD', KEYS[4])
return table.concat({'T', ARGV[1], fence, ARGV[4], type(others) == 'number' and others or 0}, '\n')
