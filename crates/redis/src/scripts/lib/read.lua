-- The value of a lock, false if there is none. A value of another type is somebody else's lock and reads as
-- an empty text; any other error, such as a missing right, ends the step before it has done anything.
local function read(key)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'table' then return value end
  if string.find(value.err, 'WRONGTYPE', 1, true) then return '' end
  return redis.call('GET', key)
end
