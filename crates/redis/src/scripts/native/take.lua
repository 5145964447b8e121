-- What comes of an attempt to write `record` into a lock, where `held` was found: false if it has been written, a
-- text if the lock is somebody's, a table if that was not to be learned. Answers a letter and the fields after it:
-- G: fence, ms left, number of other waiters or -1 if nobody looked
-- B: ms left or -1, clock in µs, description; without one if it is free, and somebody else is to have it
local function take(lock, waiters, record, held, fence, clock, beginning, ttl)
  if type(held) == 'table' then
    -- Not asked yet; or a value of another type, or a Redis before 7, which does not take NX and GET together. If it
    -- was another error, it comes again and ends the attempt.
    held = read(lock)
    if not held then redis.call('SET', lock, record, 'PX', ttl) end
  end

  local secret = string.sub(beginning, 5, -2)
  local waits = waiters and not held and precedence(waiters)
  if waits then
    redis.call('DEL', lock)
    enqueue(waiters, clock, secret)
    return 'B', waits .. '\n' .. clock .. '\n'
  end
  local mine = owned(held, beginning)
  if held and not mine then
    local description = described(held)
    if waiters and description ~= '' then
      enqueue(waiters, clock, secret)
      if not awaited(held) then redis.pcall('APPEND', lock, '\n') end
    end
    return 'B', left_of(lock) .. '\n' .. clock .. '\n' .. description
  end

  local left = ttl
  if mine then
    fence, left = fence_of(held), prolong(lock, 'L' .. ttl)
  end
  local others = -1
  if waiters then
    others = dequeue(waiters, secret)
    if others > 0 and not (mine and awaited(held)) then redis.pcall('APPEND', lock, '\n') end
  end
  return 'G', fence .. '\n' .. left .. '\n' .. others
end
