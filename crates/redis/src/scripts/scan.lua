-- One step through the names of a server. Names longer than any lock has are left out here: they could be longer than
-- an answer may be.
-- ARGV  1 cursor  2 pattern  3 how many  4 longest name
-- Returns the next cursor, then the names that were found
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local found = {page[1]}
for _, name in ipairs(page[2]) do
  if #name <= tonumber(ARGV[4]) then found[#found + 1] = name end
end
return found
