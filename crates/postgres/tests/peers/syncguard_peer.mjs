// Locks in PostgreSQL the way the npm package syncguard does: same tables, same order of statements, NOW() as the
// clock, READ COMMITTED. Written from the description of its flows, as the other side in tests of layout=syncguard.
//
// One JSON command per line on stdin, one JSON answer per line on stdout:
//   {"op":"acquire","key":…,"ttlMs":…,"stallMs":…}   -> {"ok":true,"lockId":…,"fence":…} | {"ok":false}
//   {"op":"extend","lockId":…,"ttlMs":…,"stallMs":…} -> {"ok":…}
//   {"op":"release","lockId":…} | {"op":"isLocked","key":…}
//   {"op":"race","key":…,"turns":…}                  -> {"ok":true,"turns":…}: takes turns, counting who is inside
// A command with stallMs stops between its read and its write, and says {"stalled":true} when it does.

import { randomBytes } from "node:crypto";
import { createInterface } from "node:readline";
import postgres from "postgres";

const TOLERANCE_MS = 1000;
const [url, schema] = process.argv.slice(2);
const sql = postgres(url, { max: 4, onnotice: () => {} });
const locks = sql(`${schema}.syncguard_locks`);
const fences = sql(`${schema}.syncguard_fence_counters`);

const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const now = async (tx) => {
  const [row] = await tx`SELECT FLOOR(EXTRACT(EPOCH FROM NOW()) * 1000)::bigint AS ms`;
  return Number(row.ms);
};

const isLive = (row, ms) => Number(row.expires_at_ms) > ms - TOLERANCE_MS;

const stall = async (ms) => {
  if (!ms) return;
  say({ stalled: true });
  await sleep(ms);
};

async function acquire({ key, ttlMs, stallMs }) {
  const lockId = randomBytes(16).toString("base64url");
  const fenceKey = `fence:${key}`;
  return sql.begin(async (tx) => {
    await tx`SELECT pg_advisory_xact_lock(hashtext(${key}))`;
    const ms = await now(tx);
    const [held] = await tx`SELECT * FROM ${locks} WHERE key = ${key}`;
    await stall(stallMs);
    if (held && isLive(held, ms)) return { ok: false };
    await tx`INSERT INTO ${fences} (fence_key, fence, key_debug) VALUES (${fenceKey}, 0, ${key})
             ON CONFLICT (fence_key) DO NOTHING`;
    const [counter] = await tx`UPDATE ${fences} SET fence = fence + 1 WHERE fence_key = ${fenceKey} RETURNING fence`;
    const fence = String(counter.fence).padStart(15, "0");
    await tx`INSERT INTO ${locks} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
             VALUES (${key}, ${lockId}, ${ms + ttlMs}, ${ms}, ${fence}, ${key})
             ON CONFLICT (key) DO UPDATE SET lock_id = EXCLUDED.lock_id, expires_at_ms = EXCLUDED.expires_at_ms,
               acquired_at_ms = EXCLUDED.acquired_at_ms, fence = EXCLUDED.fence, user_key = EXCLUDED.user_key`;
    return { ok: true, lockId, fence };
  });
}

async function owned(tx, lockId) {
  const ms = await now(tx);
  const [row] = await tx`SELECT * FROM ${locks} WHERE lock_id = ${lockId} FOR UPDATE`;
  return row && row.lock_id === lockId && isLive(row, ms) ? [row, ms] : [null, ms];
}

const extend = ({ lockId, ttlMs, stallMs }) =>
  sql.begin(async (tx) => {
    const [row, ms] = await owned(tx, lockId);
    await stall(stallMs);
    if (!row) return { ok: false };
    await tx`UPDATE ${locks} SET expires_at_ms = ${ms + ttlMs} WHERE key = ${row.key}`;
    return { ok: true };
  });

const release = ({ lockId }) =>
  sql.begin(async (tx) => {
    const [row] = await owned(tx, lockId);
    if (!row) return { ok: false };
    await tx`DELETE FROM ${locks} WHERE key = ${row.key}`;
    return { ok: true };
  });

async function isLocked({ key }) {
  const [row] = await sql`SELECT *, FLOOR(EXTRACT(EPOCH FROM NOW()) * 1000)::bigint AS ms FROM ${locks} WHERE key = ${key}`;
  return { ok: Boolean(row && isLive(row, Number(row.ms))) };
}

async function race({ key, turns }) {
  const inside = sql(`${schema}.inside`);
  for (let done = 0; done < turns; ) {
    const got = await acquire({ key, ttlMs: 60000 });
    if (!got.ok) {
      await sleep(1 + Math.random() * 5);
      continue;
    }
    const [entered] = await sql`UPDATE ${inside} SET n = n + 1 RETURNING n`;
    if (entered.n !== 1) return { ok: false, error: `${entered.n} inside` };
    await sql`UPDATE ${inside} SET n = n - 1`;
    await sql`INSERT INTO ${sql(`${schema}.granted`)} (fence) VALUES (${got.fence})`;
    if (!(await release(got)).ok) return { ok: false, error: "lost the lock" };
    done += 1;
  }
  return { ok: true, turns };
}

const commands = { acquire, extend, release, isLocked, race };
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  try {
    say(await commands[command.op](command));
  } catch (error) {
    say({ ok: false, error: error.message });
  }
}
await sql.end();
