-- The fence after `last`, where `last` has just been overwritten by the clock but was not behind it. Answers nil
-- and an error when no number is left below 2^53, where Lua numbers would begin to repeat; the counter is then as
-- it was.
local function mint_after(last, counter)
  local number = string.find(last, '^%d+$') and tonumber(last)
  if number and number < 9007199254740990 then
    local fence = decimal(number + 1)
    redis.call('SET', counter, fence)
    return fence
  end
  redis.call('SET', counter, last)
  return nil, redis.error_reply('FENCE no fence is left, or the counter is not a number')
end
