-- Wakes the waiter that came first and still listens: its channel is called as the set of waiters, with 'wake' for
-- 'wait' and the client for the key. Hints only: whatever fails here fails silently, because the step before it
-- has been done.
local function wake(waiters, lock)
  if not waiters then return end
  local before, tag = string.match(waiters, '^([^\1]*\1)wait([^:]*:)')
  for _ = 1, 5000 do
    local first = redis.pcall('ZPOPMIN', waiters)
    if type(first) ~= 'table' or not first[1] then return end
    local channel = before .. 'wake' .. tag .. string.sub(first[1], 1, 22)
    local heard = redis.pcall(PUBLISH, channel, lock)
    if type(heard) ~= 'number' or heard > 0 then return end
  end
end

-- Takes one out who waits no more. It may have been woken a moment ago: if the lock is free the wake-up passes on.
local function withdraw(waiters, lock, secret, free)
  if not waiters then return end
  redis.pcall('ZREM', waiters, string.sub(ARGV[1], 1, 22) .. ':' .. secret)
  if free then wake(waiters, lock) end
end
