-- Takes several locks, each for a caller of its own: that one is busy is no matter to the others.
-- KEYS  1 fence counter, then for each: lock; waiters, if the callers wait
-- ARGV  1 id of the request  2 lease in ms  3 owner text, then for each: beginning of the record
-- Returns A, id, then for each: G or B and the fields that `take.lua` tells of; or ?, if that failed: the caller
--         has to ask alone, and will be told why
for i = 1, count do
  local held = found[i]
  if held then
    local place, beginning, fence = 2 + (i - 1) * step, ARGV[3 + i], decimal(first + i - 1)
    local waiters = step == 2 and KEYS[place + 1]
    -- Taken already, but others wait.
    if held == true then held = false end
    local done, letter, fields =
      pcall(take, KEYS[place], waiters, beginning .. fence .. rest, held, fence, clock, beginning, ttl)
    answers[i] = done and letter .. '\n' .. fields or '?'
  end
end
return 'A\n' .. ARGV[1] .. '\n' .. table.concat(answers, '\n')
