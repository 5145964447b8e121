-- Says who holds some locks.
-- KEYS  for each lock: lock, record
-- ARGV  1 id of the request
-- Returns L, id, clock in µs, then for each lock: description, ms left, -1 no end, -2 not held
local answer = {'L', ARGV[1], decimal(clock())}
for i = 1, #KEYS / 2 do
  local held = read(KEYS[2 * i - 1])
  local record = held and read(KEYS[2 * i])
  answer[2 * i + 2] = held and owned(record, 'ht1 ' .. held .. ' ') and described(record) or ''
  answer[2 * i + 3] = left_of(KEYS[2 * i - 1])
end
return table.concat(answer, '\n')
