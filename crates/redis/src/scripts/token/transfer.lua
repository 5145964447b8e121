-- Hands a held lock to another owner.
-- KEYS  1 lock  2 fence counter  3 record  4 waiters
-- ARGV  1 id of the request  2 secret that must hold it  3 next secret  4 next lease in ms  5 next owner text
-- Returns T, id, fence, ms left, number of waiters  N, id: was not held
local held = read(KEYS[1])
if held == ARGV[3] then
  -- Done before, by a request whose answer was lost: the same grant, with its fence.
  local beginning, record = 'ht1 ' .. ARGV[3] .. ' ', read(KEYS[3]) or ''
  local fence = string.sub(record, 1, #beginning) == beginning and string.match(record, '^%d+', #beginning + 1)
  if fence then
    local left = redis.call('PTTL', KEYS[1])
    if left >= 0 and left < tonumber(ARGV[4]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[4])
      remember(KEYS[3], record, tonumber(ARGV[4]))
      left = ARGV[4]
    end
    local others = redis.pcall('ZCARD', KEYS[4])
    return table.concat({'T', ARGV[1], fence, left, type(others) == 'number' and others or 0}, '\n')
  end
end
if held ~= ARGV[2] then return 'N\n' .. ARGV[1] end
local now = clock()
local fence, refusal = mint(KEYS[2], now)
if not fence then return refusal end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
remember(KEYS[3], 'ht1 ' .. ARGV[3] .. ' ' .. fence .. ' ' .. decimal(now) .. ' ' .. ARGV[5], tonumber(ARGV[4]))
local others = redis.pcall('ZCARD', KEYS[4])
return table.concat({'T', ARGV[1], fence, ARGV[4], type(others) == 'number' and others or 0}, '\n')
