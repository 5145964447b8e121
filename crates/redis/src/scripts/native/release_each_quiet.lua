-- Gives back those of several locks that nobody waits for, in two calls. `release_each.lua` says what KEYS and ARGV
-- are, and goes on with the others.
local locks, gone, answers = {}, {}, {}
for i = 2, #ARGV do locks[i - 1] = KEYS[2 * i - 3] end
local found = redis.pcall('MGET', unpack(locks))
if not found.err then
  for i = 1, #locks do
    local held, beginning = found[i], ARGV[i + 1]
    if held and string.sub(held, 1, #beginning) == beginning and string.byte(held, -1) ~= 10 then
      gone[#gone + 1], answers[i] = locks[i], 'R'
    end
  end
end
if gone[1] then redis.call('DEL', unpack(gone)) end
if #gone == #locks then return 'A\n' .. ARGV[1] .. '\n' .. table.concat(answers, '\n') end
