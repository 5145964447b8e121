// Takes, releases and shows a lock in the format of syncguard, through Google's own client.
// Usage: node syncguard.cjs acquire|release|show KEY ID TTL_MS; the emulator is named by FIRESTORE_EMULATOR_HOST.
const { Firestore } = require("@google-cloud/firestore");

const TOLERANCE_MS = 1000;
const [command, rawKey, id, ttl] = process.argv.slice(2);
const db = new Firestore({ projectId: "interop" });
const key = rawKey.normalize("NFC");
const lock = db.collection("locks").doc(key);
const counter = db.collection("fence_counters").doc(`fence:${key}`);
const isLive = (data) => data !== undefined && data.expiresAtMs > Date.now() - TOLERANCE_MS;

async function acquire() {
  return db.runTransaction(async (transaction) => {
    const held = (await transaction.get(lock)).data();
    const count = (await transaction.get(counter)).data();
    if (isLive(held)) return "locked";
    const fence = String(Number.parseInt(count?.fence ?? "0", 10) + 1).padStart(15, "0");
    const now = Date.now();
    transaction.set(counter, { fence, keyDebug: rawKey });
    transaction.set(lock, { lockId: id, expiresAtMs: now + Number(ttl), acquiredAtMs: now, key: rawKey, fence });
    return fence;
  });
}

async function release() {
  return db.runTransaction(async (transaction) => {
    const found = await transaction.get(db.collection("locks").where("lockId", "==", id));
    if (found.size !== 1 || !isLive(found.docs[0].data())) return false;
    transaction.delete(found.docs[0].ref);
    return true;
  });
}

async function show() {
  const held = (await lock.get()).data();
  const times = `${typeof held.expiresAtMs} ${typeof held.acquiredAtMs} ${typeof held.lockId}`;
  return `${held.fence} ${times} ${held.fence.length} ${Object.keys(held).sort().join(",")} ${held.key}`;
}

const steps = { acquire, release, show };
steps[command]().then(
  (answer) => console.log(String(answer)),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);
