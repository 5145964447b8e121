-- Writes a value of the user's own, unless a later holder has written it already.
-- KEYS  1 the value  2 the largest fence that has written it
-- ARGV  1 id of the request  2 fence  3 new value
-- Returns W, id: written  O, id, fence: a later holder has written under this fence
local last = redis.call('GET', KEYS[2])
-- Numbers in digits, not in Lua's own: fences of other stores are longer than those can hold.
if last and (#last > #ARGV[2] or #last == #ARGV[2] and last > ARGV[2]) then
  return 'O\n' .. ARGV[1] .. '\n' .. string.sub(last, 1, 20)
end
-- First the fence: if the second write fails, nothing older gets through.
redis.call('SET', KEYS[2], ARGV[2])
redis.call('SET', KEYS[1], ARGV[3])
return 'W\n' .. ARGV[1]
