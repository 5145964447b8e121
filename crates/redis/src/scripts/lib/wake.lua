-- Wakes the waiter that came first and still listens. Hints only: whatever fails here fails silently,
-- because the step before it has been done.
local function wake(waiters, lock, channel)
  for _ = 1, 64 do
    local first = redis.pcall('ZPOPMIN', waiters)
    if type(first) ~= 'table' or not first[1] then return end
    local heard = redis.pcall(PUBLISH, channel .. string.sub(first[1], 1, 22), lock)
    if type(heard) ~= 'number' or heard > 0 then return end
  end
end
