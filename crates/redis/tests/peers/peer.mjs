// One Node process that locks with somebody else's library, driven by the Rust tests over its standard input.
//
//   node peer.mjs LIBRARY REDIS_PORT NODE_MODULES
//
// LIBRARY is lilith, redlock, sesamecare, maestro or syncguard. Each line of input is a JSON object {op, …}, each
// line of output its answer. lilith, maestro and syncguard are written here from their documented behaviour; the
// other two are the real packages.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { randomBytes, randomUUID, createHash } from 'node:crypto';

const [, , library, port, modules] = process.argv;
const require = createRequire(modules + '/');
const Redis = require('ioredis');
const redis = new Redis({ host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: 3 });

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Plain SET NX with owner-checked scripts: the README of @lilith/distributed-lock. */
const lilith = {
  async acquire(key, ttl) {
    const token = randomUUID();
    const script = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 else return 0 end";
    return (await redis.eval(script, 1, key, token, ttl)) === 1 ? { key, token } : null;
  },
  async release({ key, token }) {
    const script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
    return (await redis.eval(script, 1, key, token)) === 1;
  },
  async extend({ key, token }, ttl) {
    const script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";
    return (await redis.eval(script, 1, key, token, ttl)) === 1;
  },
};

/** redlock@5 and its fork have the same face. */
function redlockLike(Redlock) {
  const locks = new Redlock([redis], { retryCount: 0, driftFactor: 0, automaticExtensionThreshold: 1 });
  locks.on?.('error', () => {});
  return {
    async acquire(key, ttl) {
      try {
        const lock = await locks.acquire([key], ttl);
        return { lock, token: lock.value };
      } catch (error) {
        if (error?.name === 'ExecutionError' || error?.name === 'ResourceLockedError') return null;
        throw error;
      }
    },
    release: async (held) => held.lock.release().then(() => true, () => false),
    extend: async (held, ttl) =>
      held.lock.extend(ttl).then((lock) => { held.lock = lock; return true; }, () => false),
  };
}

/** maestro: SET NX EX in whole seconds, then GET before DEL or EXPIRE, in two steps. */
async function maestroLike() {
  const { createClient } = require('redis');
  const client = createClient({ url: `redis://127.0.0.1:${port}` });
  await client.connect();
  const token = `${Date.now()}-${Math.random().toString(36).slice(2, 15)}`;
  return {
    async acquire(key, ttl) {
      const taken = await client.set(key, token, { NX: true, EX: Math.ceil(ttl / 1000) });
      return taken === 'OK' ? { key, token } : null;
    },
    async release({ key }) {
      if ((await client.get(key)) !== token) return false;
      await client.del(key);
      return true;
    },
    async extend({ key }, ttl) {
      if ((await client.get(key)) !== token) return false;
      await client.expire(key, Math.ceil(ttl / 1000));
      return true;
    },
  };
}

/** syncguard's Redis backend: JSON lock, index by id, counter under its double prefix, tolerance of a second. */
function syncguardLike(prefix = 'syncguard') {
  const limit = 1000, reserve = 26;
  const storageKey = (name) => {
    const whole = `${prefix}:${name.normalize('NFC')}`;
    if (Buffer.byteLength(whole) + reserve <= limit) return whole;
    return `${prefix}:${createHash('sha256').update(whole).digest().subarray(0, 16).toString('base64url')}`;
  };
  const now = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) ";
  const scripts = {
    acquire: now + `
      local held = redis.call('GET', KEYS[1])
      if held then
        local lock = cjson.decode(held)
        if lock.expiresAtMs > now - tonumber(ARGV[3]) then return 0 end
      end
      local fence = string.format('%015d', redis.call('INCR', KEYS[3]))
      local ends = now + tonumber(ARGV[2])
      local lock = {lockId = ARGV[1], expiresAtMs = ends, acquiredAtMs = now, key = ARGV[5], fence = fence}
      redis.call('SET', KEYS[1], cjson.encode(lock), 'PX', ARGV[2])
      redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[2])
      return {1, fence, ends}`,
    release: now + `
      local key = redis.call('GET', KEYS[1])
      if not key then return -1 end
      local held = redis.call('GET', key)
      if not held then return -1 end
      local lock = cjson.decode(held)
      if lock.expiresAtMs <= now - tonumber(ARGV[2]) then redis.call('DEL', key, KEYS[1]) return -2 end
      if lock.lockId ~= ARGV[1] then return 0 end
      redis.call('DEL', key, KEYS[1])
      return 1`,
    extend: now + `
      local key = redis.call('GET', KEYS[1])
      local held = key and redis.call('GET', key)
      if not held then return 0 end
      local lock = cjson.decode(held)
      if lock.expiresAtMs <= now - tonumber(ARGV[2]) or lock.lockId ~= ARGV[1] then return 0 end
      lock.expiresAtMs = now + tonumber(ARGV[3])
      redis.call('SET', key, cjson.encode(lock), 'PX', ARGV[3])
      redis.call('SET', KEYS[1], key, 'PX', ARGV[3])
      return {1, lock.expiresAtMs}`,
    lookup: now + `
      local held = redis.call('GET', KEYS[1])
      if not held then return nil end
      local lock = cjson.decode(held)
      if lock.expiresAtMs <= now - tonumber(ARGV[1]) then return nil end
      return cjson.encode(lock)`,
  };
  return {
    async acquire(key, ttl) {
      const id = randomBytes(16).toString('base64url');
      const lock = storageKey(key);
      const answer = await redis.eval(scripts.acquire, 3, lock, storageKey(`id:${id}`), storageKey(`fence:${lock}`), id, ttl, 1000, lock, key.normalize('NFC'));
      return Array.isArray(answer) ? { token: id, fence: answer[1] } : null;
    },
    release: async ({ token }) => (await redis.eval(scripts.release, 1, storageKey(`id:${token}`), token, 1000)) === 1,
    extend: async ({ token }, ttl) =>
      Array.isArray(await redis.eval(scripts.extend, 1, storageKey(`id:${token}`), token, 1000, ttl)),
    async lookup(key) {
      const held = await redis.eval(scripts.lookup, 1, storageKey(key), 1000);
      return held === null ? null : JSON.parse(held);
    },
  };
}

const peers = {
  lilith: async () => lilith,
  redlock: async () => redlockLike(require('redlock').default),
  sesamecare: async () => redlockLike(require('@sesamecare-oss/redlock').Redlock),
  maestro: maestroLike,
  syncguard: async () => syncguardLike(),
};
const peer = await peers[library]();
const held = new Map();

const operations = {
  async acquire({ key, ttl }) {
    const lock = await peer.acquire(key, ttl);
    if (lock) held.set(key, lock);
    return { ok: Boolean(lock), token: lock?.token, fence: lock?.fence };
  },
  release: async ({ key, token }) => ({ ok: await peer.release(token ? { key, token } : held.get(key)) }),
  extend: async ({ key, token, ttl }) => ({ ok: await peer.extend(token ? { key, token } : held.get(key), ttl) }),
  lookup: async ({ key }) => ({ ok: true, lock: await peer.lookup(key) }),
  // Adds one to a counter `cycles` times, each time under the lock, reading and writing in two steps.
  async count({ key, counter, cycles, ttl }) {
    let refused = 0;
    for (let done = 0; done < cycles; ) {
      const lock = await peer.acquire(key, ttl);
      if (!lock) {
        refused += 1;
        await sleep(Math.random() * 3);
        continue;
      }
      const seen = Number(await redis.get(counter));
      await redis.set(counter, seen + 1);
      if (!(await peer.release(lock))) return { ok: false, why: 'the lock was lost' };
      done += 1;
    }
    return { ok: true, refused };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    answer = await operations[request.op](request);
  } catch (error) {
    answer = { ok: false, error: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + '\n');
}
process.exit(0);
