-- The server's clock in microseconds, exact in a Lua number until the year 2255.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
