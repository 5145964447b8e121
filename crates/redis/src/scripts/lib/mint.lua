-- The fences after `last`, as many as `count`, where `last` has just been overwritten by the clock but was not behind
-- it. Answers the first of them as a number; or nil and an error when none is left below 2^53, where Lua numbers
-- would begin to repeat. The counter is then as it was.
local function mint_after(last, counter, count)
  local number = string.find(last, '^%d+$') and tonumber(last)
  if number and number < 9007199254740991 - count then
    redis.call('SET', counter, decimal(number + count))
    return number + 1
  end
  redis.call('SET', counter, last)
  return nil, redis.error_reply('FENCE no fence is left, or the counter is not a number')
end
