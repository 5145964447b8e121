// One Node process that locks with somebody else's package, driven by the bench over its standard input.
//
//   node peer.mjs LIBRARY REDIS_PORT DIRECTORY
//
// DIRECTORY has the node_modules. Each package is used as its documentation says, on one ioredis client, with its
// defaults: redlock and @sesamecare-oss/redlock try 10 times, 200 ms (100 ms jitter) apart, then give up, so whoever
// wants to wait longer begins again; redis-semaphore tries every 10 ms for 10 s, and renews. Locks live 30 s.
// Requests and answers as in the bench's own worker.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { join } from 'node:path';

const [, , library, port, directory] = process.argv;
const require = createRequire(join(directory, 'package.json'));
const Redis = require('ioredis');
const redis = new Redis({ host: '127.0.0.1', port: Number(port) });

const TTL = 30_000;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// The two have the same face.
function redlockLike(Redlock) {
  const locks = new Redlock([redis]);
  locks.on?.('error', () => {});
  return async (key) => {
    const lock = await locks.acquire([key], TTL);
    return () => lock.release();
  };
}

const libraries = {
  redlock: () => redlockLike(require('redlock').default),
  '@sesamecare-oss/redlock': () => redlockLike(require('@sesamecare-oss/redlock').Redlock),
  'redis-semaphore': () => {
    const { Mutex } = require('redis-semaphore');
    return async (key) => {
      const mutex = new Mutex(redis, key, { lockTimeout: TTL });
      await mutex.acquire();
      return () => mutex.release();
    };
  },
};
const acquire = libraries[library]();

// Begins again when the package gives up.
async function insist(key) {
  for (;;) {
    try {
      return await acquire(key);
    } catch (error) {
      if (redis.status !== 'ready') throw error;
    }
  }
}

const all = (tasks, work) => Promise.all(Array.from({ length: tasks }, (_, task) => work(task)));

const operations = {
  async pairs({ tasks, each }) {
    const times = [];
    const start = process.hrtime.bigint();
    await all(tasks, async (task) => {
      for (let n = 0; n < each; n += 1) {
        const begun = process.hrtime.bigint();
        const release = await acquire(`pairs:${task}:${n}`);
        await release();
        times.push(Number(process.hrtime.bigint() - begun) / 1e3);
      }
    });
    const seconds = Number(process.hrtime.bigint() - start) / 1e9;
    times.sort((a, b) => a - b);
    return { seconds, p50_us: times[Math.floor(times.length / 2)] };
  },
  async contend({ key, tasks, each, hold_us }) {
    const holds = [];
    await all(tasks, async (task) => {
      for (let n = 0; n < each; n += 1) {
        const release = await insist(key);
        const granted = process.hrtime.bigint();
        await sleep(hold_us / 1000);
        const released = process.hrtime.bigint();
        await release();
        holds.push([Number(granted), Number(released), task]);
      }
    });
    return { holds };
  },
  async wait({ key, tasks }) {
    all(tasks, () => insist(key));
    return { waiting: tasks };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    answer = await operations[request.op](request);
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + '\n');
}
process.exit(0);
