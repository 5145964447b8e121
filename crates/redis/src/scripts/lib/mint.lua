-- The next fence: max(last + 1, now). One SET does the work of GET and SET when the clock is ahead, as it
-- nearly always is. Answers nil and an error text when no number is left below 2^53, where Lua numbers
-- would begin to repeat; the counter is then as it was.
local function mint(counter, now)
  local last = now < 9007199254740991 and redis.call('SET', counter, decimal(now), 'GET')
  if last == false and now < 9007199254740991 then return now end
  local number = last and string.find(last, '^%d+$') and tonumber(last)
  if number and number < now then return now end
  if number and number < 9007199254740990 then
    redis.call('SET', counter, decimal(number + 1))
    return number + 1
  end
  if last then redis.call('SET', counter, last) end
  return nil, 'FENCE no fence is left, or the counter is not a number'
end
