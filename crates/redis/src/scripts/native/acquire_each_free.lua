-- Takes those of several locks that are free, each for a caller of its own, as `acquire_free.lua` does for one. The
-- fences are a row of numbers, reserved before the first lock is taken: one that is busy wastes its number.
-- `acquire_each.lua` says what KEYS and ARGV are, and goes on with the others.
local count, ttl, rest = #ARGV - 3, ARGV[2], ' ' .. clock .. ' ' .. ARGV[3]
local step = (#KEYS - 1) / count
local first = tonumber(clock)
local last = redis.call('SET', KEYS[1], decimal(first + count - 1), 'GET')
if last and not (#last == #clock and last < clock) then
  local refusal
  first, refusal = mint_after(last, KEYS[1], count, first)
  if not first then return refusal end
end
-- Whether others wait, for all at once: they nearly never do.
local others = '-1'
if step == 2 then
  local queues = {}
  for i = 1, count do queues[i] = KEYS[1 + 2 * i] end
  others = redis.pcall('EXISTS', unpack(queues)) == 0 and '0'
end
-- Only the last digits are counted, unless that would carry: it costs half of writing a whole fence.
local head, tail = decimal(first), nil
head, tail = string.sub(head, 1, -7), tonumber(string.sub(head, -6))
local answers, found = {}, nil
for i = 1, count do
  local digits = tail + i - 1
  local fence = digits < 1000000 and head .. string.format('%06d', digits) or decimal(first + i - 1)
  local held = redis.pcall('SET', KEYS[2 + (i - 1) * step], ARGV[3 + i] .. fence .. rest, 'NX', 'PX', ttl, 'GET')
  if held then
    found = found or {}
    found[i] = held
  else
    local queue = others
    if not queue then
      queue = redis.pcall('ZCARD', KEYS[1 + 2 * i])
      if type(queue) ~= 'number' then queue = '-1' end
    end
    if type(queue) == 'number' and queue > 0 then
      -- One of them may have the right of way: the long way looks into that.
      found = found or {}
      found[i] = true
    else
      answers[i] = 'G\n' .. fence .. '\n' .. ttl .. '\n' .. queue
    end
  end
end
if not found then return 'A\n' .. ARGV[1] .. '\n' .. table.concat(answers, '\n') end
