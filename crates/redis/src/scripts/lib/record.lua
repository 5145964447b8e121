-- A record is 'ht1 SECRET FENCE GRANTED OWNER', one line; a line feed at its end says that somebody waits. Its
-- beginning, up to the space after the secret, says whose it is.
local function owned(record, beginning)
  return record and string.sub(record, 1, #beginning) == beginning
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
