-- The next fence, in digits: max(last + 1, now). One SET does the work of GET and SET when the clock is ahead, as
-- it nearly always is.
local function mint(counter, now)
  if now >= 9007199254740991 then
    return nil, redis.error_reply('FENCE the clock of the server is beyond the year 2255')
  end
  local last = redis.call('SET', counter, decimal(now), 'GET')
  if not last or string.find(last, '^%d+$') and tonumber(last) < now then return decimal(now) end
  local fence, refusal = mint_after(last, counter, 1, now)
  return fence and decimal(fence), refusal
end
