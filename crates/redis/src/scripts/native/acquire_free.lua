-- Takes a free lock, in three calls. The way of nearly every attempt, so it stands before the functions that all
-- other ways need: making those costs more than a call. `acquire.lua` says what KEYS and ARGV are, and goes on
-- with what is known here: the clock, the fence if it is settled, and who holds the lock.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now >= 9007199254740991 then
  return redis.error_reply('FENCE the clock of the server is beyond the year 2255')
end
local fence = string.format('%.0f', now)
local last = redis.call('SET', KEYS[2], fence, 'GET')
-- The counter was behind the clock. Texts of the same length compare like the numbers in them.
local settled = not last or #last == #fence and last < fence
local held
if settled then
  held = redis.pcall('SET', KEYS[1], ARGV[2] .. fence .. ' ' .. fence .. ' ' .. ARGV[4], 'NX', 'PX', ARGV[3], 'GET')
  if not held and not ARGV[5] then return 'G\n' .. ARGV[1] .. '\n' .. fence .. '\n' .. ARGV[3] .. '\n-1' end
end
