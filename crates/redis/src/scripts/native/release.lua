-- Gives a lock back, or withdraws a waiter.
-- KEYS  1 lock  2 waiters, unless they are out of reach on another node
-- ARGV  1 id of the request  2 beginning of the record
-- Returns R, id: released  N, id: was not held
return give(KEYS[1], KEYS[2], ARGV[2], held) .. '\n' .. ARGV[1]
