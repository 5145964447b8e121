-- A whole number in digits; Lua's own way would turn a long one into an exponent.
local function decimal(number)
  return string.format('%.0f', number)
end

-- What is left of a key's life in ms: -1 for ever, -2 gone. Bounded, because digits beyond 2^53 would be wrong.
local function left_of(key)
  return decimal(math.min(redis.call('PTTL', key), 9e15))
end
