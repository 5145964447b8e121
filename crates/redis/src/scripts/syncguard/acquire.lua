-- Takes a lock in the format of syncguard, or says who has it.
-- KEYS  1 lock  2 fence counter  3 index of the secret  4 waiters, unless the caller does not wait
-- ARGV  1 id of the request  2 secret  3 lease in ms  4 user key (the format has no place for an owner)
--       5 'again', only if the caller may stand among the waiters
-- Returns G, id, fence, ms left, number of other waiters or -1 if nobody looked
--         B, id, ms left or -1, clock in µs, description
local micros = clock()
local now = math.floor(micros / 1000)
local held = read(KEYS[1])
local lock = lock_of(held)
-- What cannot be read is somebody else's lock, for as long as it is there.
local live = held and (not lock or is_live(lock, now))
if live and not (lock and lock.lockId == ARGV[2]) then
  -- The counter of another lock stays for ever: nobody should wait for that.
  if string.find(ARGV[4], '^fence:') and string.find(held, '^%d+$') then return meets() end
  if KEYS[4] and lock then enqueue(KEYS[4], decimal(micros), ARGV[2]) end
  return table.concat({'B', ARGV[1], left_of(KEYS[1]), decimal(micros), lock and told(lock) or ''}, '\n')
end
local waits = not live and KEYS[4] and precedence(KEYS[4])
if waits then
  enqueue(KEYS[4], decimal(micros), ARGV[2])
  return table.concat({'B', ARGV[1], waits, decimal(micros), ''}, '\n')
end

if not has_room(KEYS[3], KEYS[1]) then return meets() end
local ends = now + tonumber(ARGV[3])
if live then
  lock.expiresAtMs = math.max(lock.expiresAtMs, ends)
else
  local fence, refusal = count(KEYS[2], micros)
  if not fence then return refusal end
  lock = {lockId = ARGV[2], key = ARGV[4], fence = fence, acquiredAtMs = now, expiresAtMs = ends}
end
store(lock, now, KEYS[1], KEYS[3])
local others = ARGV[5] and dequeue(KEYS[4], ARGV[2]) or -1
return table.concat({'G', ARGV[1], lock.fence, decimal(lock.expiresAtMs - now), others}, '\n')
