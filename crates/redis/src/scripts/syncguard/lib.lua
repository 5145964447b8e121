-- A lock of syncguard is a JSON object {lockId, expiresAtMs, acquiredAtMs, key, fence} with an index from the id
-- to the lock. Contenders wait for a second after its end (its tolerance), so both live a second longer in Redis.
local function lock_of(text)
  if not text then return nil end
  local readable, lock = pcall(cjson.decode, text)
  if readable and type(lock) == 'table' and type(lock.lockId) == 'string'
    and type(lock.key) == 'string' and type(lock.expiresAtMs) == 'number'
    and type(lock.acquiredAtMs) == 'number' and string.find(tostring(lock.fence), '^%d+$') then
    return lock
  end
end

local function is_live(lock, now)
  return lock.expiresAtMs > now - 1000
end

-- Numbers are written by hand: cjson would turn long ones into exponents.
local function store(lock, now, key, index)
  local text = string.format(
    '{"key":%s,"lockId":%s,"fence":"%s","acquiredAtMs":%.0f,"expiresAtMs":%.0f}',
    cjson.encode(lock.key), cjson.encode(lock.lockId), lock.fence, lock.acquiredAtMs, lock.expiresAtMs)
  local life = string.format('%.0f', lock.expiresAtMs - now + 1000)
  redis.call('SET', key, text, 'PX', life)
  if index then redis.call('SET', index, key, 'PX', life) end
end

-- Locks, counters and indexes share one space of names, so a key that begins with fence: or id: may stand where another
-- lock has its counter or index. None of them ever overwrites another.
local function meets()
  return redis.error_reply('MEETS a lock and the counter or the index of a lock have one name')
end

-- Whether the index of the lock at key can stand here.
local function has_room(index, key)
  return index ~= key and not lock_of(read(index))
end

-- 15 digits from the counter that Node uses, refused above 9e14 as there, but before anything is written. A
-- counter that was lost, or is an old copy, is raised to the clock, so that its numbers do not come again. The clock
-- counts in tenths of a millisecond: faster than one lock is granted, and far below where Node begins to warn (9e13).
local function count(counter, micros)
  local now = math.floor(micros / 100)
  local last = redis.call('GET', counter)
  if lock_of(last) then return nil, meets() end
  if last and not string.find(last, '^%d+$') or tonumber(last or 0) >= 900000000000000 then
    return nil, redis.error_reply('FENCE no fence is left, or the counter is not a number')
  end
  if tonumber(last or 0) < now - 1 then redis.call('SET', counter, string.format('%.0f', now - 1)) end
  return string.format('%015.0f', redis.call('INCR', counter))
end

local function told(lock)
  return string.format('%s %.0f ', lock.fence, lock.acquiredAtMs * 1000)
end
