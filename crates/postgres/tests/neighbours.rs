//! What others in the same database do: settings, locked rows, and those who stand nearer to the
//! server.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight_core::{
    AcquireRequest, Attempt, Backend as _, ErrorKind, ExtendBy, ExtendRequest, Extension, Release,
    Transfer, TransferRequest,
};
use holdtight_postgres::PostgresStore;
use holdtight_testkit::servers::Postgres;
use support::{
    LONG, attempt, available, eventually, extend, fresh, key, lookup, open, queue, refused,
    release, secret, take,
};
use tokio_postgres::{Client, NoTls};

/// A session of somebody else.
async fn session(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Somebody else's transaction that has the row of `key` locked until it is dropped.
async fn locked(server: &Postgres, schema: &str, key: &str) -> Client {
    let client = session(server).await;
    let lock = format!("BEGIN; SELECT FROM {schema}.locks WHERE key = '{key}' FOR UPDATE");
    client.batch_execute(&lock).await.unwrap();
    client
}

#[tokio::test]
async fn a_sweep_removes_no_lock_whatever_the_isolation_level_is() {
    if !available() {
        return;
    }
    for (schema, level) in
        [("rc", "READ COMMITTED"), ("rr", "REPEATABLE READ"), ("sr", "SERIALIZABLE")]
    {
        let (server, url) = fresh(schema).await;
        let store = open(&url).await;
        // Enough free keys for an index that is worth cutting.
        let free = format!(
            "INSERT INTO {schema}.locks (key, secret, fence, granted_at, expires_at, owner)
             SELECT 'k' || n || repeat('x', 400), '', 1, now(), now() - interval '1 hour', ''
             FROM generate_series(1, 4900) AS n"
        );
        server.sql(&free).unwrap();
        let other = session(&server).await;
        let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM {schema}.locks");
        other.batch_execute(&begin).await.unwrap();
        let (owner, lease) = take(&store, &key("held"), LONG).await;
        let sweep = format!("SELECT {schema}.locks_sweep(0, 0, 5000); COMMIT");
        other.batch_execute(&sweep).await.unwrap();
        let kept = lookup(&store, &key("held")).await.unwrap();
        assert_eq!(kept.and_then(|kept| kept.fence), Some(lease.fence), "{level}");
        assert_eq!(release(&store, &key("held"), &owner).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn locks_are_read_committed_though_the_role_is_not() {
    if !available() {
        return;
    }
    let (_server, url) = fresh("serious").await;
    for level in ["repeatable%5C%20read", "serializable"] {
        let url = format!("{url}&options=-c%20default_transaction_isolation%3D{level}");
        let store = open(&url).await;
        let here = key(level);
        let mut last = None;
        for _ in 0..3 {
            let (owner, lease) = take(&store, &here, LONG).await;
            assert!(last < Some(lease.fence), "{level}");
            last = Some(lease.fence);
            assert_eq!(release(&store, &here, &owner).await.unwrap(), Release::Released);
            assert_eq!(store.sweep(Duration::ZERO).await.unwrap(), 1, "{level}");
        }
        // Behind a pooler the session is not ours to set.
        let pooled = PostgresStore::connect(&format!("{url}&pooler=transaction")).await;
        let text = refused(pooled, ErrorKind::InvalidConfig);
        assert!(text.contains("read committed"), "{text}");
    }
}

#[tokio::test]
async fn whoever_was_woken_is_served_before_those_who_stand_nearer() {
    if !available() {
        return;
    }
    let (_server, url) = fresh("far").await;
    let (near, far) = (open(&url).await, open(&url).await);
    // Where the machine stands still, the right of way is over before the others ask: then once
    // more.
    for round in 0.. {
        let (here, waiter) = (key(&format!("k{round}")), secret());
        let (owner, _) = take(&near, &here, LONG).await;
        let _bell = Arc::clone(&far).subscribe(here.clone()).await.unwrap();
        assert!(matches!(queue(&far, &here, &waiter).await, Attempt::Busy(_)));
        let released = Instant::now();
        release(&near, &here, &owner).await.unwrap();
        let rival = secret();
        let answer = queue(&near, &here, &rival).await;
        if released.elapsed() > Duration::from_millis(250) {
            assert!(round < 20, "this machine is too slow to tell");
            continue;
        }
        let Attempt::Busy(busy) = answer else { panic!("it barged in: {answer:?}") };
        assert!(busy.retry_after <= Some(Duration::from_millis(300)), "{busy:?}");
        assert!(lookup(&near, &here).await.unwrap().is_none(), "nobody holds it yet");
        assert!(matches!(queue(&far, &here, &waiter).await, Attempt::Granted(_)));
        // The rival kept its place, and is next.
        release(&far, &here, &waiter).await.unwrap();
        assert!(matches!(queue(&near, &here, &rival).await, Attempt::Granted(_)));
        return;
    }
}

#[tokio::test]
async fn one_who_was_woken_and_never_comes_keeps_nobody_waiting_for_long() {
    if !available() {
        return;
    }
    let (server, url) = fresh("gone").await;
    let (near, far) = (open(&url).await, open(&url).await);
    let (here, waiter) = (key("k"), secret());
    let (owner, _) = take(&near, &here, LONG).await;
    let _bell = Arc::clone(&far).subscribe(here.clone()).await.unwrap();
    assert!(matches!(queue(&far, &here, &waiter).await, Attempt::Busy(_)));
    release(&near, &here, &owner).await.unwrap();
    // Who does not stand in line is not kept back.
    let (passer, _) = take(&near, &here, LONG).await;
    release(&near, &here, &passer).await.unwrap();
    let rival = secret();
    eventually("the right of way is over", async || {
        matches!(queue(&near, &here, &rival).await, Attempt::Granted(_)).then_some(())
    })
    .await;
    let left = server.sql("SELECT cardinality(queue) FROM gone.locks WHERE key = 'k'").unwrap();
    assert_eq!(left, "0", "it must come anew");
}

#[tokio::test]
async fn one_locked_row_costs_no_other_lock_its_renewal() {
    if !available() {
        return;
    }
    for (schema, options, table) in
        [("blast", "", "locks"), ("blastsg", "&layout=syncguard", "syncguard_locks")]
    {
        let (server, url) = fresh(schema).await;
        let url = format!("{url}{options}");
        holdtight_postgres::migrate(&url).await.unwrap();
        let store = open(&url).await;
        let mut requests = Vec::new();
        for n in 0..20 {
            let key = key(&format!("k{n}"));
            let (owner, _) = take(&store, &key, LONG).await;
            requests.push(ExtendRequest::new(key, owner, ExtendBy::AtLeast(LONG)));
        }
        let held = session(&server).await;
        let lock = format!("BEGIN; SELECT FROM {schema}.{table} WHERE key = 'k7' FOR UPDATE");
        held.batch_execute(&lock).await.unwrap();
        let answers = Arc::clone(&store).extend(requests.clone()).await.unwrap();
        for (n, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(Extension::Extended(_)) if n != 7 => {}
                Err(error) if n == 7 => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                other => panic!("{schema}, k{n}: {other:?}"),
            }
        }
        drop(held);
        eventually("the row is free again", async || {
            let answer = extend(&store, &requests[7].key, &requests[7].secret, LONG).await;
            matches!(answer, Ok(Extension::Extended(_))).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn renewals_pass_acquires_that_wait_for_a_row() {
    if !available() {
        return;
    }
    let (server, url) = fresh("passing").await;
    let store = open(&format!("{url}&connections=1&timeout=20")).await;
    let (owner, _) = take(&store, &key("mine"), LONG).await;
    let (other, _) = take(&store, &key("busy"), LONG).await;
    release(&store, &key("busy"), &other).await.unwrap();
    let _held = locked(&server, "passing", "busy").await;
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { attempt(&store, &key("busy"), &secret(), LONG).await })
        })
        .collect();
    eventually("an acquire waits in the server", async || {
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%passing%'";
        (server.sql(waits).as_deref() == Ok("t")).then_some(())
    })
    .await;
    let answer = extend(&store, &key("mine"), &owner, LONG).await;
    assert!(matches!(answer, Ok(Extension::Extended(_))), "{answer:?}");
    assert!(waiting.iter().any(|waiting| !waiting.is_finished()), "it waited for all of them");
    for waiting in waiting {
        refused(waiting.await.unwrap(), ErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn a_waiter_that_cannot_be_notified_undoes_nobodys_release() {
    if !available() {
        return;
    }
    let (server, url) = fresh("poison").await;
    let store = open(&url).await;
    let (owner, _) = take(&store, &key("victim"), LONG).await;
    for waiter in ["repeat('a', 80) || '/1'", "'a b/1'", "'noticket'", "'a/'"] {
        let call = format!("SELECT poison.locks_acquire('victim', 'x', 1, 'o', {waiter})");
        assert!(server.sql(&call).is_err(), "{waiter}");
    }
    assert_eq!(release(&store, &key("victim"), &owner).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_command_that_lives_for_a_moment_cleans_up_too() {
    if !available() {
        return;
    }
    let (server, url) = fresh("moment").await;
    let free = "INSERT INTO moment.locks (key, secret, fence, granted_at, expires_at, owner)
         SELECT 'k' || n, '', 1, now(), now() - interval '1 hour', '' FROM generate_series(1, 100) AS n";
    server.sql(free).unwrap();
    let store = open(&url).await;
    let (owner, _) = take(&store, &key("mine"), LONG).await;
    release(&store, &key("mine"), &owner).await.unwrap();
    // Now it may end.
    assert_eq!(server.sql("SELECT key FROM moment.locks").unwrap(), "mine");
}

#[tokio::test]
async fn secrets_stay_in_the_program() {
    if !available() {
        return;
    }
    let (server, url) = fresh("secrets").await;
    let store = open(&url).await;
    let (owner, _) = take(&store, &key("k"), LONG).await;
    let next = secret();
    let to = AcquireRequest::new(key("k"), next.clone(), LONG);
    let request = TransferRequest::new(owner.clone(), to);
    assert!(matches!(Arc::clone(&store).transfer(request).await, Ok(Transfer::Transferred(_))));
    let rows = server.sql("SELECT l::text FROM secrets.locks AS l").unwrap();
    assert!(rows.starts_with("(k,"), "{rows}");
    for secret in [owner, next] {
        assert!(!rows.contains(secret.expose()), "what is not sent cannot be logged");
    }
}
