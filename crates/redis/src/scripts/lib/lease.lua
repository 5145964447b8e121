-- Moves the end of a lease, never earlier: 'L5000' is at least 5 s from now, 'A5000' is 5 s later but at most a day
-- from now. A key without an end stays so. Answers what is left.
local function prolong(key, by)
  local wanted = tonumber(string.sub(by, 2))
  local add = string.sub(by, 1, 1) == 'A'
  -- One call where the server can compare (Redis 7); any other answer than "moved" is looked into.
  if not add and redis.pcall('PEXPIRE', key, wanted, 'GT') == 1 then return decimal(wanted) end
  local left = redis.call('PTTL', key)
  if left < 0 then return '86400000' end
  if add then wanted = math.min(left + wanted, 86400000) end
  if wanted <= left then return decimal(math.min(left, 9e15)) end
  redis.call('PEXPIRE', key, decimal(wanted))
  return decimal(wanted)
end
