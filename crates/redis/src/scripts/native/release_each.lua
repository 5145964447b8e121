-- Gives several locks back, each for a caller of its own.
-- KEYS  for each: lock, waiters
-- ARGV  1 id of the request, then for each: beginning of the record
-- Returns A, id, then for each: R released, N was not held; or ?, if that failed: the caller has to ask alone, and
--         will be told why
for i = 1, #locks do
  if not answers[i] then
    local done, letter = pcall(give, locks[i], KEYS[2 * i], ARGV[i + 1])
    answers[i] = done and letter or '?'
  end
end
return 'A\n' .. ARGV[1] .. '\n' .. table.concat(answers, '\n')
