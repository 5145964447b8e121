-- Hands over a lock while the counter is behind the clock, as it nearly always is, before the functions that the
-- other ways need; `transfer.lua` says what KEYS and ARGV are, and goes on with what is known here.
local held, last = redis.pcall('GET', KEYS[1]), nil
if type(held) == 'string' and string.sub(held, 1, #ARGV[2]) == ARGV[2] then
  last = redis.call('SET', KEYS[2], clock, 'GET')
  if not last or #last == #clock and last < clock then
    local mark = string.byte(held, -1) == 10 and '\n' or ''
    redis.call('SET', KEYS[1], ARGV[3] .. clock .. ' ' .. clock .. ' ' .. ARGV[5] .. mark, 'PX', ARGV[4])
    return 'T\n' .. ARGV[1] .. '\n' .. clock .. '\n' .. ARGV[4] .. '\n' .. #mark
  end
end
