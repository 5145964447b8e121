-- Frees a lock, whoever holds it, if its fence is still the one that was seen.
-- KEYS  1 lock  2 waiters
-- ARGV  1 id of the request  2 fence
-- Returns R, id: released  N, id: another fence, or not held
local held = read(KEYS[1])
if described(held) == '' or fence_of(held) ~= ARGV[2] then return 'N\n' .. ARGV[1] end
redis.call('DEL', KEYS[1])
wake(KEYS[2], KEYS[1])
return 'R\n' .. ARGV[1]
