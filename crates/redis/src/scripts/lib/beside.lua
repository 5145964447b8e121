-- Keeps a record beside its lock. It lives a minute longer, and means nothing without the lock: it counts only
-- while the lock's value is the secret in it.
local function remember(key, record, left)
  redis.call('SET', key, record, 'PX', decimal(left + 60000))
end
