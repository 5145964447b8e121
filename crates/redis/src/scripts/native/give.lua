-- Gives a lock back if it is ours, or withdraws a waiter; `held` is its value if that is known. Answers R or N.
local function give(lock, waiters, beginning, held)
  if held == nil or type(held) == 'table' then held = read(lock) end
  if held and string.sub(held, 1, #beginning) == beginning then
    redis.call('DEL', lock)
    wake(waiters, lock)
    return 'R'
  end
  withdraw(waiters, lock, string.sub(beginning, 5, -2), not held)
  return 'N'
end
