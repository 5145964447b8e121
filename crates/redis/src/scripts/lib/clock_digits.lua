-- The server's clock in microseconds, in digits: cheaper than a number where it is only written down.
local time = redis.call('TIME')
local clock = time[2]
if #clock < 6 then clock = string.rep('0', 6 - #clock) .. clock end
clock = time[1] .. clock
if #clock > 15 and (#clock > 16 or clock >= '9007199254740000') then
  return redis.error_reply('FENCE the clock of the server is beyond the year 2255')
end
