"""One Python process that locks with redis-py's own Lock, driven by the Rust tests over its standard input.

    python3 peer.py redis-py REDIS_PORT SITE_PACKAGES

Each line of input is a JSON object {op, ...}, each line of output its answer.
"""

import json
import random
import sys
import time

_, library, port, packages = sys.argv
sys.path.insert(0, packages)

import redis  # noqa: E402  (only importable now)
from redis.lock import Lock  # noqa: E402

client = redis.Redis(port=int(port))
held = {}


def take(key, ttl):
    lock = Lock(client, key, timeout=ttl / 1000, blocking=False)
    return lock if lock.acquire() else None


def give(lock):
    try:
        lock.release()
        return True
    except redis.exceptions.LockError:
        return False


def resumed(key, token, ttl=1000):
    lock = Lock(client, key, timeout=ttl / 1000, blocking=False)
    lock.local.token = token.encode()
    return lock


def lock_of(request):
    token = request.get("token")
    return resumed(request["key"], token) if token else held[request["key"]]


def acquire(request):
    lock = take(request["key"], request["ttl"])
    if lock:
        held[request["key"]] = lock
    return {"ok": bool(lock), "token": lock.local.token.decode() if lock else None}


def extend(request):
    try:
        return {"ok": bool(lock_of(request).extend(request["ttl"] / 1000, replace_ttl=True))}
    except redis.exceptions.LockError:
        return {"ok": False}


def count(request):
    done, refused = 0, 0
    while done < request["cycles"]:
        lock = take(request["key"], request["ttl"])
        if not lock:
            refused += 1
            time.sleep(random.random() * 0.003)
            continue
        seen = int(client.get(request["counter"]) or 0)
        client.set(request["counter"], seen + 1)
        if not give(lock):
            return {"ok": False, "why": "the lock was lost"}
        done += 1
    return {"ok": True, "refused": refused}


operations = {
    "acquire": acquire,
    "release": lambda request: {"ok": give(lock_of(request))},
    "extend": extend,
    "count": count,
}

for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = operations[request["op"]](request)
    except Exception as error:  # the test prints it
        answer = {"ok": False, "error": repr(error)}
    print(json.dumps(answer), flush=True)
