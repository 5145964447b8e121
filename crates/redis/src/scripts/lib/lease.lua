-- Moves the end of a lease, never earlier: at least ms from now ('L'), or ms later but at most a day from
-- now ('A'). A key without an end stays so. Answers what is left.
local function prolong(key, how, ms)
  local left = redis.call('PTTL', key)
  if left < 0 then return 86400000 end
  local wanted = tonumber(ms)
  if how == 'A' then wanted = math.min(left + wanted, 86400000) end
  if wanted <= left then return left end
  redis.call('PEXPIRE', key, decimal(wanted))
  return wanted
end
