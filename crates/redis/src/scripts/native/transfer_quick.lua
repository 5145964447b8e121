-- Hands over a lock while the counter is behind the clock, as it nearly always is, before the functions that the
-- other ways need; `transfer.lua` says what KEYS and ARGV are, and goes on with what is known here.
local held, last = redis.pcall('GET', KEYS[1]), nil
if type(held) == 'string' and string.sub(held, 1, #ARGV[2]) == ARGV[2] then
  last = redis.call('SET', KEYS[2], clock, 'GET')
  if not last or #last == #clock and last < clock then
    local record, others = ARGV[3] .. clock .. ' ' .. clock .. ' ' .. ARGV[5], '\n0'
    if string.byte(held, -1) == 10 then record, others = record .. '\n', '\n1' end
    redis.call('SET', KEYS[1], record, 'PX', ARGV[4])
    return 'T\n' .. ARGV[1] .. '\n' .. clock .. '\n' .. ARGV[4] .. others
  end
end
