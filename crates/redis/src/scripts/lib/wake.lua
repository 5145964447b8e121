-- Wakes the waiter that came first, still listens, and is not on its way already: its channel is called as the set of
-- waiters, with 'wake' for 'wait' and the client for the key. For 300 ms, as long as a wake-up and an answer take between
-- continents, it has the right of way before others in line: a key called the same with 'heir' says so. It also keeps its
-- place until it is granted the lock or leaves; the half that is added to it says that it was woken.
-- Hints only: whatever fails here fails silently, because the step before it has been done.
local function wake(waiters, lock)
  if not waiters then return end
  local before, tag, key = string.match(waiters, '^([^\1]*\1)wait([^:]*:)(.*)$')
  local kept = {}
  for _ = 1, 5000 do
    local first = redis.pcall('ZPOPMIN', waiters)
    if type(first) ~= 'table' or not first[1] then break end
    local came, woken = tonumber(first[2]), false
    if came % 1 == 0 then
      local channel = before .. 'wake' .. tag .. string.sub(first[1], 1, 22)
      local heard = redis.pcall(PUBLISH, channel, lock)
      if type(heard) ~= 'number' then break end
      woken = heard > 0
      if woken then
        came = came + 0.5
        redis.pcall('SET', before .. 'heir' .. tag .. key, first[1], 'PX', '300')
      end
    end
    if came % 1 ~= 0 then
      kept[#kept + 1], kept[#kept + 2] = string.format('%.1f', came), first[1]
    end
    if woken then break end
  end
  if kept[1] then
    redis.pcall('ZADD', waiters, unpack(kept))
    redis.pcall('PEXPIRE', waiters, '30000')
  end
end

-- Takes one out who waits no more. It may have been woken a moment ago: if the lock is free the wake-up passes on.
local function withdraw(waiters, lock, secret, free)
  if not waiters then return end
  local mine, before, rest = string.sub(ARGV[1], 1, 22) .. ':' .. secret, string.match(waiters, '^([^\1]*\1)wait(.*)$')
  redis.pcall('ZREM', waiters, mine)
  local heir = before .. 'heir' .. rest
  if redis.pcall('GET', heir) == mine then redis.pcall('DEL', heir) end
  if free then wake(waiters, lock) end
end
