"""One Python process that locks with somebody else's package, driven by the bench over its standard input.

    python3 peer.py LIBRARY REDIS_PORT DIRECTORY

DIRECTORY has the packages. Each is used as its documentation says, from threads that share one redis-py client, with
its defaults: redis-py's Lock tries every 0.1 s; python-redis-lock waits for a signal by BLPOP. Locks live 30 s.
Requests and answers as in the bench's own worker.
"""

import json
import os
import sys
import threading
import time

_, library, port, packages = sys.argv
sys.path.insert(0, packages)

import redis  # noqa: E402  (only importable now)
import redis_lock  # noqa: E402

TTL = 30
# A connection for every thread: by default there are fewer, and the others fail.
client = redis.Redis(port=int(port), max_connections=2048)

makers = {
    "redis-py": lambda key: client.lock(key, timeout=TTL),
    "python-redis-lock": lambda key: redis_lock.Lock(client, key, expire=TTL),
}
make = makers[library]


def everyone(tasks, work):
    """Runs work in threads; the first failure is raised."""
    failures = []

    def guarded(task):
        try:
            work(task)
        except Exception as failure:  # reported by the caller
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(task,), daemon=True) for task in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def pairs(tasks, each, **_):
    times = []

    def work(task):
        for n in range(each):
            begun = time.monotonic_ns()
            lock = make(f"pairs:{task}:{n}")
            lock.acquire()
            lock.release()
            times.append((time.monotonic_ns() - begun) / 1e3)

    start = time.monotonic()
    everyone(tasks, work)
    seconds = time.monotonic() - start
    times.sort()
    return {"seconds": seconds, "p50_us": times[len(times) // 2]}


def contend(key, tasks, each, hold_us, **_):
    holds = []

    def work(task):
        for _ in range(each):
            lock = make(key)
            lock.acquire()
            granted = time.monotonic_ns()
            time.sleep(hold_us / 1e6)
            released = time.monotonic_ns()
            lock.release()
            holds.append([granted, released, task])

    everyone(tasks, work)
    return {"holds": holds}


def wait(key, tasks, **_):
    for _ in range(tasks):
        threading.Thread(target=lambda: make(key).acquire(), daemon=True).start()
    return {"waiting": tasks}


operations = {"pairs": pairs, "contend": contend, "wait": wait}

for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = operations[request.pop("op")](**request)
    except Exception as error:  # the bench prints it
        answer = {"error": repr(error)}
    print(json.dumps(answer), flush=True)
# Threads that still wait are not waited for.
sys.stdout.flush()
os._exit(0)
