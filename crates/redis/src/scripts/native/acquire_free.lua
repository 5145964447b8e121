-- Takes a free lock, in three calls, or four for a caller who waits: it may have come before one that was woken, and
-- must know that others are there. The way of nearly every attempt, so it stands before the functions that all
-- other ways need: making those costs more than a call. `acquire.lua` says what KEYS and ARGV are, and goes on
-- with what is known here: the clock in digits, whether it is the fence, and who holds the lock.
local last = redis.call('SET', KEYS[2], clock, 'GET')
-- The counter was behind the clock. Texts of the same length compare like the numbers in them.
local settled = not last or #last == #clock and last < clock
local held
if settled then
  held = redis.pcall('SET', KEYS[1], ARGV[2] .. clock .. ' ' .. clock .. ' ' .. ARGV[4], 'NX', 'PX', ARGV[3], 'GET')
  if not held and not ARGV[5] then
    -- In digits from the start: turning a number into them costs as much as a call.
    local others = '-1'
    if KEYS[3] then
      local waiting = redis.pcall('ZCARD', KEYS[3])
      if waiting == 0 then others = '0' end
      -- One of them may have the right of way: the long way looks into that.
      if type(waiting) == 'number' and waiting > 0 then others = nil end
    end
    if others then return 'G\n' .. ARGV[1] .. '\n' .. clock .. '\n' .. ARGV[3] .. '\n' .. others end
  end
end
