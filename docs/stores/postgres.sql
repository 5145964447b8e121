-- The schema of holdtight's PostgreSQL store, version 2.
--
-- `holdtight migrate` and `holdtight_postgres::migrate` run exactly this text, as one transaction. Running it again
-- changes nothing; running it from many processes at once is safe. It needs a role that may create a schema.
--
-- One row per key says who holds it. Every step of the store is one call of one function below, in a transaction of
-- its own: nothing is kept in the session, so a transaction pooler may stand in between. Times are read from
-- clock_timestamp(), after the row is locked. Grants and extensions commit durably whatever the role or the database
-- says (set_config inside the function lasts until the commit; a SET clause would end with the function). Functions run
-- with the rights of their owner and a fixed search_path: a program that locks needs EXECUTE on them and nothing else,
-- and cannot read the secrets of others.

SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('holdtight migrate "holdtight"."locks"', 0));

DO $do$
BEGIN
    IF pg_catalog.current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'holdtight needs a database in UTF8, this one is in %',
            pg_catalog.current_setting('server_encoding') USING ERRCODE = 'feature_not_supported';
    END IF;
    -- CREATE SCHEMA IF NOT EXISTS would ask for rights on the database even when there is nothing to create.
    IF pg_catalog.to_regnamespace('"holdtight"') IS NULL THEN
        CREATE SCHEMA "holdtight";
    END IF;
    IF pg_catalog.to_regclass('"holdtight"."locks_meta"') IS NOT NULL THEN
        IF (SELECT m.version > 2 FROM "holdtight"."locks_meta" AS m) THEN
            RAISE EXCEPTION 'the schema was made by a newer holdtight; upgrade this program instead'
                USING ERRCODE = 'HTNEW';
        END IF;
    END IF;
END
$do$;

-- Who holds what. A released key keeps its row as a tombstone (secret = '', expires_at = when it was freed), because
-- the row remembers the last fence; the sweep removes it later. No index but the primary key, and room in each page:
-- so that every update stays in its page (HOT) and costs no index write.
CREATE TABLE IF NOT EXISTS "holdtight"."locks" (
    key        text COLLATE "C" NOT NULL PRIMARY KEY,
    -- Half a SHA-256 of it, which is all that ever leaves the program.
    secret     text COLLATE "C" NOT NULL,
    fence      bigint           NOT NULL,
    granted_at timestamptz      NOT NULL,
    expires_at timestamptz      NOT NULL,
    owner      text             NOT NULL,
    -- Waiters, oldest first: 'until_µs channel/ticket'. Hints only: a lost entry costs time, never safety.
    queue      text[]           NOT NULL DEFAULT '{}',
    -- Secrets, hashed, that were given back while a request for them may still be on its way: 'until_µs hash'. Such a
    -- request, when it arrives at last, must not be granted: nobody would know that the key is held.
    withdrawn  text[]           NOT NULL DEFAULT '{}'
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- One row. high_water is at least the largest fence of any row that the sweep removed.
CREATE TABLE IF NOT EXISTS "holdtight"."locks_meta" (
    only_row   boolean     NOT NULL PRIMARY KEY DEFAULT true CHECK (only_row),
    version    integer     NOT NULL,
    high_water bigint      NOT NULL DEFAULT 0,
    swept_at   timestamptz NOT NULL DEFAULT '-infinity',
    sweep_from text        NOT NULL DEFAULT ''
);
INSERT INTO "holdtight"."locks_meta" (version) VALUES (2) ON CONFLICT (only_row) DO UPDATE SET version = 2;

-- Since version 2. Whoever was woken, and until when nobody else in line may take the key: 'until_µs channel/ticket'. The
-- way to the one that is next may be longer than that of those who contend nearby.
ALTER TABLE "holdtight"."locks" ADD COLUMN IF NOT EXISTS heir text NOT NULL DEFAULT '';

CREATE OR REPLACE FUNCTION "holdtight"."locks_version"() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
    SELECT version FROM "holdtight"."locks_meta"
$fn$;

-- The queue without `waiter` and without entries whose time is over.
CREATE OR REPLACE FUNCTION "holdtight"."locks_queue_without"(p_queue text[], p_waiter text) RETURNS text[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $fn$
    SELECT ARRAY(
        SELECT e FROM unnest(p_queue) WITH ORDINALITY AS q(e, n)
        WHERE split_part(e, ' ', 2) <> p_waiter
          AND split_part(e, ' ', 1)::bigint > extract(epoch FROM clock_timestamp()) * 1000000
        ORDER BY n)
$fn$;

-- The queue when `waiter` was granted the key: without its entry, and without that of an heir who did not come in time.
-- Another waiter of the heir's program may have come in its place: then the heir keeps it.
CREATE OR REPLACE FUNCTION "holdtight"."locks_queue_granted"(p_queue text[], p_heir text, p_waiter text) RETURNS text[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $fn$
    SELECT "holdtight"."locks_queue_without"(CASE
        WHEN p_heir = '' OR split_part(p_heir, ' ', 1)::bigint > extract(epoch FROM clock_timestamp()) * 1000000
            OR split_part(split_part(p_heir, ' ', 2), '/', 1) = split_part(p_waiter, '/', 1) THEN p_queue
        ELSE "holdtight"."locks_queue_without"(p_queue, split_part(p_heir, ' ', 2)) END, p_waiter)
$fn$;

-- Whether an heir of another program has the right of way before `waiter`. Who does not stand in line is not kept back.
CREATE OR REPLACE FUNCTION "holdtight"."locks_has_heir"(p_heir text, p_waiter text) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $fn$
    SELECT p_heir <> '' AND p_waiter <> ''
        AND split_part(split_part(p_heir, ' ', 2), '/', 1) <> split_part(p_waiter, '/', 1)
        AND split_part(p_heir, ' ', 1)::bigint > extract(epoch FROM clock_timestamp()) * 1000000
$fn$;

-- Whether `waiter` has an entry that lives for another half minute.
CREATE OR REPLACE FUNCTION "holdtight"."locks_queue_has"(p_queue text[], p_waiter text) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $fn$
    SELECT EXISTS (
        SELECT FROM unnest(p_queue) AS q(e)
        WHERE split_part(e, ' ', 2) = p_waiter
          AND split_part(e, ' ', 1)::bigint > (extract(epoch FROM clock_timestamp()) + 30) * 1000000)
$fn$;

-- The queue with `waiter` for the next minute, in the place it had or at the end; at most 128 entries.
CREATE OR REPLACE FUNCTION "holdtight"."locks_queue_with"(p_queue text[], p_waiter text) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
    kept  text[] := "holdtight"."locks_queue_without"(p_queue, '');
    entry text := ((extract(epoch FROM clock_timestamp()) + 60) * 1000000)::bigint || ' ' || p_waiter;
BEGIN
    -- Whoever gives the key back notifies this channel: one that cannot be notified would undo others' releases.
    IF p_waiter !~ '^[A-Za-z0-9_]{1,63}/[A-Za-z0-9]{1,32}$' THEN
        RAISE EXCEPTION 'a waiter is called CHANNEL/TICKET' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR i IN 1 .. cardinality(kept) LOOP
        IF split_part(kept[i], ' ', 2) = p_waiter THEN
            kept[i] := entry;
            RETURN kept;
        END IF;
    END LOOP;
    RETURN CASE WHEN cardinality(kept) < 128 THEN kept || entry ELSE kept END;
END
$fn$;

-- Whether `secret` was given back for good not long ago.
CREATE OR REPLACE FUNCTION "holdtight"."locks_is_withdrawn"(p_withdrawn text[], p_secret text) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $fn$
    SELECT EXISTS (
        SELECT FROM unnest(p_withdrawn) AS w(e)
        WHERE split_part(e, ' ', 2) = hashtextextended(p_secret, 0)::text
          AND split_part(e, ' ', 1)::bigint > extract(epoch FROM clock_timestamp()) * 1000000)
$fn$;

-- The same list with `secret` for the next five minutes, longer than any network or pooler keeps a request; the newest
-- 128 are kept.
CREATE OR REPLACE FUNCTION "holdtight"."locks_withdraw"(p_withdrawn text[], p_secret text) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
    name text := hashtextextended(p_secret, 0)::text;
    kept text[] := "holdtight"."locks_queue_without"(p_withdrawn, name)
        || (((extract(epoch FROM clock_timestamp()) + 300) * 1000000)::bigint || ' ' || name);
BEGIN
    RETURN kept[greatest(1, cardinality(kept) - 127):];
END
$fn$;

-- Fails where statements of one transaction see one snapshot: then nobody can be sure to see what a sweep has removed
-- meanwhile, and a fence could be given twice. Connections of ours ask for READ COMMITTED.
CREATE OR REPLACE FUNCTION "holdtight"."locks_must_see_all"() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'locks need transactions that are read committed, this one is %',
            current_setting('transaction_isolation') USING ERRCODE = 'HTISO';
    END IF;
END
$fn$;

-- Takes the key if it is free, or says who has it. p_waiter is '' for an attempt that does not queue.
-- The unlocked look at the start answers the usual busy case without writing anything; it grants nothing.
-- Naming the key column in SET makes the row lock exclude locks_fenced(): see there.
CREATE OR REPLACE FUNCTION "holdtight"."locks_acquire"(
    p_key text, p_secret text, p_ttl_us bigint, p_owner text, p_waiter text,
    OUT granted boolean, OUT fence_no bigint, OUT left_us bigint, OUT age_us bigint, OUT held_by text,
    OUT contended boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
#variable_conflict use_column
DECLARE
    seen  "holdtight"."locks";
    fresh boolean;
    mark  bigint;
BEGIN
    -- Together with others less: see locks_acquire_each.
    IF current_setting('lock_timeout') <> '250ms' THEN
        PERFORM set_config('lock_timeout', '2s', true);
    END IF;
    granted := false;
    SELECT * INTO seen FROM "holdtight"."locks" WHERE key = p_key;
    IF NOT (FOUND AND seen.secret NOT IN ('', p_secret) AND seen.expires_at > clock_timestamp()
            AND (p_waiter = '' OR "holdtight"."locks_queue_has"(seen.queue, p_waiter))) THEN
        FOR turn IN 1 .. 100 LOOP
            INSERT INTO "holdtight"."locks" AS l (key, secret, fence, granted_at, expires_at, owner)
            SELECT p_key, p_secret,
                   greatest(m.high_water + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
                   clock_timestamp(), clock_timestamp() + p_ttl_us * interval '1 microsecond', p_owner
            FROM "holdtight"."locks_meta" AS m
            ON CONFLICT (key) DO UPDATE SET
                key = p_key,
                secret = p_secret,
                fence = CASE WHEN l.secret = p_secret AND l.expires_at > clock_timestamp() THEN l.fence
                    ELSE greatest(l.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) END,
                granted_at = CASE WHEN l.secret = p_secret AND l.expires_at > clock_timestamp() THEN l.granted_at
                    ELSE clock_timestamp() END,
                expires_at = greatest(CASE WHEN l.secret = p_secret THEN l.expires_at END,
                    clock_timestamp() + p_ttl_us * interval '1 microsecond'),
                owner = p_owner,
                queue = CASE WHEN l.queue = '{}' THEN l.queue
                    ELSE "holdtight"."locks_queue_granted"(l.queue, l.heir, p_waiter) END,
                heir = '',
                withdrawn = CASE WHEN l.withdrawn = '{}' THEN l.withdrawn
                    ELSE "holdtight"."locks_queue_without"(l.withdrawn, '') END
            WHERE (l.secret IN ('', p_secret) OR l.expires_at <= clock_timestamp())
              AND (l.heir = '' OR l.secret = p_secret OR NOT "holdtight"."locks_has_heir"(l.heir, p_waiter))
              AND (l.withdrawn = '{}' OR NOT "holdtight"."locks_is_withdrawn"(l.withdrawn, p_secret))
            RETURNING l.fence, extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000, l.queue <> '{}', l.xmax = 0
            INTO fence_no, left_us, contended, fresh;
            IF FOUND THEN
                -- A sweep may have removed this key's row after our snapshot was taken. From here on no sweep can
                -- touch the key, and a look with a new snapshot sees the mark that such a sweep left.
                IF fresh THEN
                    -- Asked here as well, because calling a function costs many times as much.
                    IF current_setting('transaction_isolation') <> 'read committed' THEN
                        PERFORM "holdtight"."locks_must_see_all"();
                    END IF;
                    SELECT m.high_water INTO mark FROM "holdtight"."locks_meta" AS m;
                    IF mark >= fence_no THEN
                        UPDATE "holdtight"."locks" SET fence = mark + 1 WHERE key = p_key
                        RETURNING fence INTO fence_no;
                    END IF;
                END IF;
                granted := true;
                -- Doubts about the commit come as warnings.
                PERFORM set_config('client_min_messages', 'warning', true), set_config('synchronous_commit',
                    CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);
                RETURN;
            END IF;
            -- A request that comes after its secret was given back has nobody left who waits for the answer.
            SELECT * INTO seen FROM "holdtight"."locks" WHERE key = p_key AND withdrawn <> '{}';
            IF FOUND AND "holdtight"."locks_is_withdrawn"(seen.withdrawn, p_secret) THEN
                RAISE EXCEPTION 'this secret was given back before its request arrived' USING ERRCODE = 'HTOLD';
            END IF;
            -- Somebody holds it, or is about to. What is written from here on is a hint and need not be durable.
            PERFORM set_config('synchronous_commit', 'off', true);
            IF p_waiter = '' THEN
                SELECT * INTO seen FROM "holdtight"."locks" WHERE key = p_key;
            ELSE
                UPDATE "holdtight"."locks" AS l SET queue = "holdtight"."locks_queue_with"(l.queue, p_waiter)
                WHERE l.key = p_key AND (l.secret NOT IN ('', p_secret) AND l.expires_at > clock_timestamp()
                    OR l.secret <> p_secret AND "holdtight"."locks_has_heir"(l.heir, p_waiter))
                RETURNING l.* INTO seen;
            END IF;
            EXIT WHEN FOUND;
        END LOOP;
        -- Not FOUND, which speaks of the loop.
        IF seen.key IS NULL THEN
            RAISE EXCEPTION 'no grant and no holder after many turns: the row of "holdtight"."locks_meta" is missing'
                USING ERRCODE = 'HTBAD';
        END IF;
    END IF;
    fence_no := seen.fence;
    left_us := greatest(0, extract(epoch FROM seen.expires_at - clock_timestamp()) * 1000000);
    IF seen.heir <> '' AND left_us = 0 THEN
        left_us := greatest(0, split_part(seen.heir, ' ', 1)::bigint - extract(epoch FROM clock_timestamp()) * 1000000);
    END IF;
    age_us := greatest(0, extract(epoch FROM clock_timestamp() - seen.granted_at) * 1000000);
    held_by := seen.owner;
END
$fn$;

-- Several acquires of different callers in one transaction, each with its own answer. Keys are taken in one order
-- everywhere, so that two transactions cannot wait for each other. A row that somebody keeps locked must not hold the
-- others up for long: then nothing is done, and the callers are served one by one.
CREATE OR REPLACE FUNCTION "holdtight"."locks_acquire_each"(
    p_keys text[], p_secrets text[], p_ttls_us bigint[], p_owners text[], p_waiters text[])
RETURNS TABLE (place integer, granted boolean, fence_no bigint, left_us bigint, age_us bigint, held_by text,
               contended boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
    durable text := CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END;
    grants  boolean := false;
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    FOR place IN SELECT n FROM unnest(p_keys) WITH ORDINALITY AS k(key, n) ORDER BY key COLLATE "C", n LOOP
        SELECT a.granted, a.fence_no, a.left_us, a.age_us, a.held_by, a.contended
        INTO granted, fence_no, left_us, age_us, held_by, contended
        FROM "holdtight"."locks_acquire"(
            p_keys[place], p_secrets[place], p_ttls_us[place], p_owners[place], p_waiters[place]) AS a;
        grants := grants OR granted;
        RETURN NEXT;
    END LOOP;
    -- A refusal after a grant must not make the grant lazy.
    IF grants THEN
        PERFORM set_config('synchronous_commit', durable, true);
    END IF;
END
$fn$;

-- All keys or none. Keys are taken in one order everywhere, so that two callers cannot wait for each other.
CREATE OR REPLACE FUNCTION "holdtight"."locks_acquire_many"(
    p_keys text[], p_secrets text[], p_ttls_us bigint[], p_owners text[])
RETURNS TABLE (place integer, granted boolean, fence_no bigint, left_us bigint, age_us bigint, held_by text,
               contended boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
    turn   integer;
    answer record;
    fences bigint[] := array_fill(0::bigint, ARRAY[cardinality(p_keys)]);
    lefts  bigint[] := fences;
    busy   boolean[] := array_fill(false, ARRAY[cardinality(p_keys)]);
BEGIN
    BEGIN
        FOR turn IN SELECT n FROM unnest(p_keys) WITH ORDINALITY AS k(key, n) ORDER BY key COLLATE "C" LOOP
            SELECT * INTO answer FROM "holdtight"."locks_acquire"(
                p_keys[turn], p_secrets[turn], p_ttls_us[turn], p_owners[turn], '');
            IF NOT answer.granted THEN
                place := turn;
                RAISE EXCEPTION 'busy' USING ERRCODE = 'HTBSY';
            END IF;
            fences[turn] := answer.fence_no;
            lefts[turn] := answer.left_us;
            busy[turn] := answer.contended;
        END LOOP;
    EXCEPTION WHEN SQLSTATE 'HTBSY' THEN
        granted := false;
        fence_no := answer.fence_no;
        left_us := answer.left_us;
        age_us := answer.age_us;
        held_by := answer.held_by;
        RETURN NEXT;
        RETURN;
    END;
    FOR turn IN 1 .. cardinality(p_keys) LOOP
        place := turn;
        granted := true;
        fence_no := fences[turn];
        left_us := lefts[turn];
        contended := busy[turn];
        RETURN NEXT;
    END LOOP;
END
$fn$;

-- Gives the key back if `secret` holds it, withdraws the waiter (all of a channel, if p_waiter ends with '/'), and wakes
-- the first one that is left if the key is free now. That one keeps its place, and has the right of way before the others
-- for 300 ms: as long as a wake-up and an answer take between continents. May be lazy: a release that a crash undoes is a lock held to the end of its lease. p_late says that a request
-- of this secret may still arrive after this release: it is barred.
CREATE OR REPLACE FUNCTION "holdtight"."locks_release"(
    p_key text, p_secret text, p_waiter text, p_late boolean, OUT released boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
    seen   "holdtight"."locks";
    rest   text[];
    barred text[];
    next   text := '';
    woken  text;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true),
        CASE WHEN current_setting('lock_timeout') <> '250ms' THEN set_config('lock_timeout', '2s', true) END;
    IF NOT p_late THEN
        UPDATE "holdtight"."locks" AS l SET secret = '', expires_at = clock_timestamp(), owner = ''
        WHERE l.key = p_key AND l.secret = p_secret AND p_secret <> '' AND l.expires_at > clock_timestamp()
          AND l.queue = '{}';
        released := FOUND;
        IF released THEN
            RETURN;
        END IF;
    ELSE
        -- What is barred must stay so after a crash, and there must be a row to say it in.
        PERFORM set_config('synchronous_commit', CASE current_setting('synchronous_commit')
            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);
        INSERT INTO "holdtight"."locks" AS l (key, secret, fence, granted_at, expires_at, owner)
        VALUES (p_key, '', 0, clock_timestamp(), clock_timestamp(), '') ON CONFLICT (key) DO NOTHING;
        IF FOUND THEN
            PERFORM "holdtight"."locks_must_see_all"();
            -- As in a grant: the mark of a sweep that removed the row before us, seen with a new snapshot.
            UPDATE "holdtight"."locks" AS l SET fence = m.high_water FROM "holdtight"."locks_meta" AS m
            WHERE l.key = p_key;
        END IF;
    END IF;
    SELECT * INTO seen FROM "holdtight"."locks" AS l
    WHERE l.key = p_key AND (l.secret = p_secret OR l.queue <> '{}' OR p_late)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        released := false;
        RETURN;
    END IF;
    released := seen.secret = p_secret AND p_secret <> '' AND seen.expires_at > clock_timestamp();
    rest := "holdtight"."locks_queue_without"(seen.queue, p_waiter);
    IF right(p_waiter, 1) = '/' THEN
        rest := ARRAY(SELECT e FROM unnest(rest) WITH ORDINALITY AS q(e, n)
            WHERE NOT starts_with(split_part(e, ' ', 2), p_waiter) ORDER BY n);
    END IF;
    barred := CASE WHEN p_late THEN "holdtight"."locks_withdraw"(seen.withdrawn, p_secret) ELSE seen.withdrawn END;
    IF released OR seen.secret = '' OR seen.expires_at <= clock_timestamp() THEN
        -- An heir who is still in line and in time was woken already.
        IF NOT released AND seen.heir <> '' AND "holdtight"."locks_has_heir"(seen.heir, '/') AND EXISTS (
            SELECT FROM unnest(rest) AS q(e) WHERE split_part(e, ' ', 2) = split_part(seen.heir, ' ', 2)) THEN
            next := seen.heir;
        ELSIF rest[1] <> '' THEN
            next := ((extract(epoch FROM clock_timestamp()) + 0.3) * 1000000)::bigint || ' ' || split_part(rest[1], ' ', 2);
            woken := split_part(split_part(rest[1], ' ', 2), '/', 1);
        END IF;
    END IF;
    IF released THEN
        UPDATE "holdtight"."locks" AS l
        SET secret = '', expires_at = clock_timestamp(), owner = '', queue = rest, heir = next, withdrawn = barred
        WHERE l.key = p_key;
    ELSIF rest <> seen.queue OR next <> seen.heir OR p_late THEN
        UPDATE "holdtight"."locks" AS l SET queue = rest, heir = next, withdrawn = barred WHERE l.key = p_key;
    END IF;
    -- A queue of notifications that is full, because some program listens and never reads, would undo the release. Then
    -- waiters find out by their timers.
    IF woken <> '' AND pg_notification_queue_usage() < 0.9 THEN
        PERFORM pg_notify(woken, p_key);
    END IF;
END
$fn$;

-- Several releases of different callers in one transaction, in the same order of keys.
CREATE OR REPLACE FUNCTION "holdtight"."locks_release_each"(
    p_keys text[], p_secrets text[], p_waiters text[], p_late boolean[])
RETURNS TABLE (place integer, released boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
    durable text := CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END;
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    FOR place IN SELECT n FROM unnest(p_keys) WITH ORDINALITY AS k(key, n) ORDER BY key COLLATE "C", n LOOP
        released := "holdtight"."locks_release"(p_keys[place], p_secrets[place], p_waiters[place], p_late[place]);
        RETURN NEXT;
    END LOOP;
    IF true = ANY (p_late) THEN
        PERFORM set_config('synchronous_commit', durable, true);
    END IF;
END
$fn$;

-- Frees a key whoever holds it, if its fence is still the one that was seen.
CREATE OR REPLACE FUNCTION "holdtight"."locks_force_release"(p_key text, p_fence bigint, OUT released boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
    seen "holdtight"."locks";
BEGIN
    PERFORM set_config('lock_timeout', '2s', true);
    SELECT * INTO seen FROM "holdtight"."locks" AS l
    WHERE l.key = p_key AND l.fence = p_fence AND l.secret <> '' AND l.expires_at > clock_timestamp()
    FOR NO KEY UPDATE;
    released := FOUND AND "holdtight"."locks_release"(p_key, seen.secret, '', false);
END
$fn$;

-- Moves the ends of several leases, never earlier. What is not held is not in the answer. A row that somebody else has
-- locked is waited for, half a second for all of them together, and then told without a fence: it says nothing about the
-- others, which must not be lost because of it.
CREATE OR REPLACE FUNCTION "holdtight"."locks_extend"(
    p_keys text[], p_secrets text[], p_at_least_us bigint[], p_extra_us bigint[])
RETURNS TABLE (place integer, fence_no bigint, left_us bigint, contended boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
    began    timestamptz := clock_timestamp();
    patience bigint;
    mine     text[];
    late     text;
BEGIN
    PERFORM set_config('client_min_messages', 'warning', true), set_config('synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);
    SELECT array_agg(f.key) INTO mine FROM (
        SELECT l.key FROM "holdtight"."locks" AS l
        JOIN unnest(p_keys, p_secrets, p_at_least_us, p_extra_us) AS r(key, secret, at_least, extra)
            ON l.key = r.key AND l.secret = r.secret AND r.secret <> ''
        WHERE r.at_least + r.extra > 0
        FOR NO KEY UPDATE OF l SKIP LOCKED) AS f;
    -- In one order everywhere, so that two of these cannot wait for each other.
    FOR late IN
        SELECT l.key FROM "holdtight"."locks" AS l
        JOIN unnest(p_keys, p_secrets, p_at_least_us, p_extra_us) AS r(key, secret, at_least, extra)
            ON l.key = r.key AND l.secret = r.secret AND r.secret <> ''
        WHERE r.at_least + r.extra > 0 AND l.expires_at > clock_timestamp() AND l.key <> ALL (coalesce(mine, '{}')) ORDER BY l.key
    LOOP
        patience := floor(extract(epoch FROM began + interval '0.5 seconds' - clock_timestamp()) * 1000);
        EXIT WHEN patience <= 0;
        BEGIN
            PERFORM set_config('lock_timeout', patience::text, true);
            PERFORM FROM "holdtight"."locks" AS l WHERE l.key = late FOR NO KEY UPDATE;
            mine := mine || late;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    RETURN QUERY
    UPDATE "holdtight"."locks" AS l
    SET expires_at = greatest(l.expires_at, clock_timestamp() + r.at_least * interval '1 microsecond',
        least(l.expires_at + r.extra * interval '1 microsecond', clock_timestamp() + interval '24 hours'))
    FROM unnest(p_keys, p_secrets, p_at_least_us, p_extra_us) WITH ORDINALITY AS r(key, secret, at_least, extra, n)
    WHERE l.key = ANY (mine) AND l.key = r.key AND l.secret = r.secret AND r.secret <> ''
      AND l.expires_at > clock_timestamp() AND r.at_least + r.extra > 0
    RETURNING r.n::integer, l.fence, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint,
        l.queue <> '{}';
    RETURN QUERY
    SELECT r.n::integer, NULL::bigint, NULL::bigint, NULL::boolean
    FROM unnest(p_keys, p_secrets, p_at_least_us, p_extra_us) WITH ORDINALITY AS r(key, secret, at_least, extra, n)
    JOIN "holdtight"."locks" AS l ON l.key = r.key AND l.secret = r.secret AND r.secret <> ''
    WHERE l.key <> ALL (coalesce(mine, '{}')) AND l.expires_at > clock_timestamp() AND r.at_least + r.extra > 0;
    -- Who asks for nothing only wants to know.
    RETURN QUERY
    SELECT r.n::integer, l.fence, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint,
        l.queue <> '{}'
    FROM unnest(p_keys, p_secrets, p_at_least_us, p_extra_us) WITH ORDINALITY AS r(key, secret, at_least, extra, n)
    JOIN "holdtight"."locks" AS l ON l.key = r.key AND l.secret = r.secret AND r.secret <> ''
    WHERE l.expires_at > clock_timestamp() AND r.at_least + r.extra = 0;
END
$fn$;

-- Hands a held key to the next owner: another secret, lease, owner and fence. Asked again because the answer was lost, it
-- tells of the same grant: the next owner has the key already, and keeps its fence.
CREATE OR REPLACE FUNCTION "holdtight"."locks_transfer"(
    p_key text, p_from text, p_to text, p_ttl_us bigint, p_owner text,
    OUT fence_no bigint, OUT left_us bigint, OUT contended boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
    PERFORM set_config('lock_timeout', '2s', true), set_config('client_min_messages', 'warning', true),
        set_config('synchronous_commit',
            CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);
    -- FOR UPDATE, as in a grant, excludes locks_fenced().
    PERFORM FROM "holdtight"."locks" AS l WHERE l.key = p_key AND l.secret IN (p_from, p_to) FOR UPDATE;
    UPDATE "holdtight"."locks" AS l
    SET secret = p_to, owner = p_owner,
        granted_at = CASE WHEN l.secret = p_to THEN l.granted_at ELSE clock_timestamp() END,
        fence = CASE WHEN l.secret = p_to THEN l.fence
            ELSE greatest(l.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) END,
        expires_at = greatest(CASE WHEN l.secret = p_to THEN l.expires_at END,
            clock_timestamp() + p_ttl_us * interval '1 microsecond')
    WHERE l.key = p_key AND l.secret IN (p_from, p_to) AND l.secret <> '' AND l.expires_at > clock_timestamp()
      AND (l.withdrawn = '{}' OR NOT "holdtight"."locks_is_withdrawn"(l.withdrawn, p_to))
    RETURNING l.fence, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint, l.queue <> '{}'
    INTO fence_no, left_us, contended;
END
$fn$;

-- Who holds the keys from p_from to p_to, in order; never a secret.
CREATE OR REPLACE FUNCTION "holdtight"."locks_held"(p_from text, p_to text, p_limit integer)
RETURNS TABLE (key text, fence_no bigint, left_us bigint, age_us bigint, held_by text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
    SELECT l.key, l.fence, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint,
        greatest(0, extract(epoch FROM clock_timestamp() - l.granted_at) * 1000000)::bigint, l.owner
    FROM "holdtight"."locks" AS l
    WHERE l.key >= p_from AND l.key <= p_to AND l.secret <> '' AND l.expires_at > clock_timestamp()
    ORDER BY l.key
    LIMIT p_limit
$fn$;

-- True if `fence` belongs to the newest grant of `key` and was not released. It also keeps the next grant waiting
-- until the caller's transaction ends, so that a write made under it cannot land after somebody else's grant:
--     UPDATE accounts SET balance = balance - 10 WHERE id = 7 AND "holdtight"."locks_fenced"('account:7', 1790000000000000);
-- FOR KEY SHARE excludes grants (which lock the row FOR UPDATE) and lets renewals pass.
CREATE OR REPLACE FUNCTION "holdtight"."locks_fenced"(p_key text, p_fence bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
    PERFORM FROM "holdtight"."locks" AS l WHERE l.key = p_key AND l.fence = p_fence AND l.secret <> ''
    FOR KEY SHARE;
    RETURN FOUND;
END
$fn$;

-- One page of a sweep: looks at the next p_batch keys and removes those that have been free for p_idle_us. A round
-- through all keys begins at most once per p_every_us, whoever asks; one caller at a time does a page, and a round that its caller
-- left is taken up by the next. The mark is raised in the transaction that deletes, so that no fence can be minted below
-- a removed one.
CREATE OR REPLACE FUNCTION "holdtight"."locks_sweep"(
    p_every_us bigint, p_idle_us bigint, p_batch integer, OUT removed bigint, OUT more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
    every  interval := p_every_us * interval '1 microsecond';
    meta   "holdtight"."locks_meta";
    last   text;
    doomed text[];
    mark   bigint;
BEGIN
    removed := 0;
    more := false;
    -- With one snapshot for the whole transaction, grants that were made meanwhile would not be seen.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', '2s', true), set_config('synchronous_commit', 'off', true);
    -- The usual answer, "not yet", locks and writes nothing.
    PERFORM FROM "holdtight"."locks_meta" AS m
    WHERE m.sweep_from <> '' OR m.swept_at <= clock_timestamp() - every OR m.swept_at > clock_timestamp() + every;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO meta FROM "holdtight"."locks_meta" AS m
    WHERE m.sweep_from <> '' OR m.swept_at <= clock_timestamp() - every OR m.swept_at > clock_timestamp() + every
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT max(page.key COLLATE "C"), count(*) = p_batch INTO last, more FROM (
        SELECT l.key FROM "holdtight"."locks" AS l WHERE l.key > meta.sweep_from ORDER BY l.key LIMIT p_batch) AS page;
    SELECT array_agg(idle.key), max(idle.fence) INTO doomed, mark FROM (
        SELECT l.key, l.fence FROM "holdtight"."locks" AS l
        WHERE l.key > meta.sweep_from AND l.key <= last AND l.expires_at <= clock_timestamp() - p_idle_us * interval '1 microsecond'
          AND (l.withdrawn = '{}' OR "holdtight"."locks_queue_without"(l.withdrawn, '') = '{}')
        FOR UPDATE SKIP LOCKED) AS idle;
    UPDATE "holdtight"."locks_meta" AS m
    SET high_water = greatest(m.high_water, mark), swept_at = clock_timestamp(),
        sweep_from = CASE WHEN more THEN last ELSE '' END;
    IF doomed IS NOT NULL THEN
        DELETE FROM "holdtight"."locks" AS l WHERE l.key = ANY (doomed);
        GET DIAGNOSTICS removed = ROW_COUNT;
    END IF;
    -- An index keeps the size it once had, even when VACUUM has emptied it. With no row left at all, and nobody at work
    -- here this very moment, both files are cut to nothing.
    IF NOT more AND pg_indexes_size('"holdtight"."locks"') > 1000000 THEN
        PERFORM FROM "holdtight"."locks" LIMIT 1;
        IF NOT FOUND THEN
            BEGIN
                LOCK TABLE "holdtight"."locks" IN ACCESS EXCLUSIVE MODE NOWAIT;
                PERFORM FROM "holdtight"."locks" LIMIT 1;
                IF NOT FOUND THEN
                    TRUNCATE "holdtight"."locks";
                END IF;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END IF;
    END IF;
END
$fn$;

-- Functions are executable by everybody unless that is taken back. To let a role lock:
--     GRANT USAGE ON SCHEMA "holdtight" TO app;
--     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "holdtight" TO app;
DO $do$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN
        SELECT p.oid FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = pg_catalog.to_regnamespace('"holdtight"') AND pg_catalog.starts_with(p.proname, 'locks_')
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', routine);
    END LOOP;
END
$do$;
