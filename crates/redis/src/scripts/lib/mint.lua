-- A row of `count` fences from max(last + 1, now) on, where `last` has just been overwritten. Answers the first of
-- them as a number; or nil and an error when none is left below 2^53, where Lua numbers would begin to repeat. The
-- counter is then as it was.
local function mint_after(last, counter, count, now)
  local number = string.find(last, '^%d+$') and tonumber(last)
  if number and number < 9007199254740991 - count then
    local first = math.max(number + 1, now)
    redis.call('SET', counter, decimal(first + count - 1))
    return first
  end
  redis.call('SET', counter, last)
  return nil, redis.error_reply('FENCE no fence is left, or the counter is not a number')
end
