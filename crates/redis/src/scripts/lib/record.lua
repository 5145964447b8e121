-- A record is 'ht1 SECRET FENCE GRANTED OWNER', one line; a line feed at its end says that somebody waits.
local function owned(record, secret)
  return record and string.sub(record, 1, #secret + 5) == 'ht1 ' .. secret .. ' '
end

local function fence_of(record)
  return string.match(record, '^ht1 %S+ (%d+) ')
end

-- What anybody may know of it: everything but the secret. Empty for a value that is not ours.
local function described(record)
  return record and string.match(string.sub(record, 1, 4096), '^ht1 %S+ (%d+ %d+ [^\n]*)\n?$') or ''
end

local function awaited(record)
  return string.byte(record, -1) == 10
end
