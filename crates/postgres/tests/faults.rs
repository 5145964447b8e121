//! What becomes of locks when the server is killed, restarted, moved in time, replaced, or out of
//! something.
#![cfg(target_os = "linux")]

mod support;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdtight_core::{Attempt, Backend as _, ErrorKind, Extension, Fence, Key, Level, Release};
use holdtight_postgres::{PostgresStore, migrate};
use holdtight_testkit::Proxy;
use support::server::Server;
use support::{
    LONG, attempt, available, eventually, extend, fresh, holder, key, lookup, open, queue, refused,
    release, secret, take,
};

fn here(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[tokio::test]
async fn grants_and_extensions_survive_kill_9_of_the_whole_server_where_the_database_commits_lazily()
 {
    if !available() {
        return;
    }
    // Nothing but a durable commit writes the log in time.
    let mut server =
        Server::start(&["wal_writer_delay=10s", "checkpoint_timeout=1h", "autovacuum=off"]);
    server.sql("ALTER DATABASE postgres SET synchronous_commit = off").unwrap();
    server.sql("CREATE TABLE witness (n int)").unwrap();
    migrate(&server.url()).await.unwrap();
    let store = open(&server.url()).await;
    let (granted, extended, fresh) = (key("granted"), key("extended"), key("fresh"));

    let (owner, first) = take(&store, &extended, Duration::from_secs(60)).await;
    assert!(matches!(extend(&store, &extended, &owner, LONG).await, Ok(Extension::Extended(_))));
    let (_, lease) = take(&store, &granted, LONG).await;
    // The witness shows that this server does forget what is committed lazily.
    server.sql("INSERT INTO witness VALUES (1)").unwrap();
    server.kill_whole();
    server.launch();

    assert_eq!(
        server.sql("SELECT count(*) FROM witness").unwrap(),
        "0",
        "the test must be able to fail"
    );
    let kept = holder(&store, &granted).await.expect("a grant must survive");
    assert_eq!(kept.fence, Some(lease.fence));
    let kept = holder(&store, &extended).await.expect("an extended lease must survive");
    assert_eq!(kept.fence, Some(first.fence));
    assert!(
        kept.remaining > Some(Duration::from_secs(300)),
        "the extension must survive: {kept:?}"
    );
    let taken = take(&store, &fresh, LONG).await.1;
    assert!(taken.fence > lease.fence);
}

#[tokio::test]
async fn grants_that_share_a_statement_with_a_refusal_survive_kill_9_of_the_whole_server() {
    if !available() {
        return;
    }
    let mut server =
        Server::start(&["wal_writer_delay=10s", "checkpoint_timeout=1h", "autovacuum=off"]);
    server.sql("ALTER DATABASE postgres SET synchronous_commit = off").unwrap();
    migrate(&server.url()).await.unwrap();
    let store = open(&format!("{}?connections=1", server.url())).await;
    // Keys are taken in order: the refusal comes last.
    let refusal = key("z");
    take(&store, &refusal, LONG).await;
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (store, key) = (Arc::clone(&store), key(&format!("k{n}")));
        callers.spawn(async move { Some((take(&store, &key, LONG).await.1.fence, key)) });
    }
    let (own, busy) = (Arc::clone(&store), refusal.clone());
    callers.spawn(async move {
        // One that queues writes, lazily.
        let answer = queue(&own, &busy, &secret()).await;
        assert!(matches!(answer, Attempt::Busy(_)), "{answer:?}");
        None
    });
    let granted: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    server.kill_whole();
    server.launch();
    for (fence, key) in granted {
        let kept = holder(&store, &key).await;
        assert_eq!(kept.and_then(|kept| kept.fence), Some(fence), "{key:?}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_wait_for_its_disk_is_refused_unless_the_url_accepts_it() {
    if !available() {
        return;
    }
    let server = Server::start(&["fsync=off", "full_page_writes=off"]);
    migrate(&server.url()).await.unwrap();
    for options in ["", "&layout=syncguard"] {
        let url = format!("{}?schema=holdtight{options}", server.url());
        migrate(&url).await.unwrap();
        let text = refused(PostgresStore::connect(&url).await, ErrorKind::InvalidConfig);
        assert!(text.contains("fsync") && text.contains("durability=any"), "{text}");
        let store = open(&format!("{url}&durability=any")).await;
        take(&store, &key("accepted"), LONG).await;
        let found = store.probe().await.unwrap().findings;
        let level = |subject: &str| {
            found.iter().find(|finding| finding.subject == subject).map(|finding| finding.level)
        };
        assert_eq!(level("durability"), Some(Level::Unsafe), "accepted is not safe");
        assert_eq!(level("torn pages"), Some(Level::Warning));
    }
}

#[tokio::test]
async fn a_store_finds_its_locks_again_after_a_restart_of_the_server() {
    if !available() {
        return;
    }
    let mut server = Server::start(&[]);
    migrate(&server.url()).await.unwrap();
    let store = open(&server.url()).await;
    let held = key("held");
    let (owner, lease) = take(&store, &held, LONG).await;
    server.kill_whole();
    let lost = lookup(&store, &held).await;
    refused(lost, ErrorKind::Unavailable);
    server.launch();
    let kept = holder(&store, &held).await.expect("still held");
    assert_eq!(kept.fence, Some(lease.fence));
    assert_eq!(release(&store, &held, &owner).await.unwrap(), Release::Released);
    let again = take(&store, &held, LONG).await.1;
    assert!(again.fence > lease.fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_terminated_sessions_breaks_no_exclusion_and_leaves_nothing_held() {
    if !available() {
        return;
    }
    let server = Server::start(&[]);
    migrate(&server.url()).await.unwrap();
    let (contested, done) = (key("contested"), Arc::new(AtomicBool::new(false)));
    let (inside, turns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = open(&server.url()).await;
        let (contested, done) = (contested.clone(), Arc::clone(&done));
        let (inside, turns) = (Arc::clone(&inside), Arc::clone(&turns));
        crowd.spawn(async move {
            let mut fences = Vec::new();
            while !done.load(Ordering::SeqCst) {
                let me = secret();
                match attempt(&store, &contested, &me, LONG).await {
                    Ok(Attempt::Granted(lease)) => {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                        fences.push(lease.fence);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                    Err(error) => assert!(error.kind().is_transient(), "{error}"),
                }
                // Whatever happened, nothing of ours may stay: ask until the store has answered.
                while let Err(error) = release(&store, &contested, &me).await {
                    assert!(error.kind().is_transient(), "{error}");
                }
            }
            fences
        });
    }
    for _ in 0..30 {
        let others = "pid <> pg_backend_pid() AND backend_type = 'client backend'";
        server
            .sql(&format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
            .unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let before = turns.load(Ordering::SeqCst);
    eventually("work goes on after the storm", async || {
        (turns.load(Ordering::SeqCst) > before + 10).then_some(())
    })
    .await;
    done.store(true, Ordering::SeqCst);
    let mut all: Vec<Fence> = Vec::new();
    while let Some(fences) = crowd.join_next().await {
        let fences = fences.unwrap();
        assert!(fences.is_sorted_by(|one, next| one < next));
        all.extend(fences);
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "no fence was given twice");
    assert!(holder(&open(&server.url()).await, &contested).await.is_none());
}

#[tokio::test]
async fn fences_grow_and_free_keys_stay_free_when_the_servers_clock_is_set_back_or_forward() {
    if !available() {
        return;
    }
    let server = Server::start_with_clock(&[]);
    migrate(&server.url()).await.unwrap();
    let store = open(&server.url()).await;
    let (moved, gone) = (key("moved"), key("gone"));
    let mut last: HashMap<Key, Fence> = HashMap::new();
    for hours in [0, 2, -2, 0, 1, -24, 3, 0] {
        server.set_clock(hours * 3600);
        for key in [&moved, &gone] {
            // Released under another time than this one: it must be free all the same.
            let (owner, lease) = take(&store, key, LONG).await;
            let before = last.insert(key.clone(), lease.fence);
            assert!(before < Some(lease.fence), "at {hours} h: {before:?} then {}", lease.fence);
            assert!(
                lease.ttl <= LONG && lease.ttl > LONG / 2,
                "a lease lasts what it lasts: {lease:?}"
            );
            assert_eq!(release(&store, key, &owner).await.unwrap(), Release::Released);
        }
        // One of the two loses its row each time: the mark must stand in for it. It is removed by
        // this sweep, or by the one that the store begins after a release, whose turn ours leaves
        // alone.
        server
            .sql("UPDATE holdtight.locks SET expires_at = '-infinity' WHERE key = 'gone'")
            .unwrap();
        eventually("the row is removed", async || {
            store.sweep(Duration::from_secs(48 * 3600)).await.unwrap();
            let rows =
                server.sql("SELECT count(*) FROM holdtight.locks WHERE key = 'gone'").unwrap();
            (rows.trim() == "0").then_some(())
        })
        .await;
    }
    // A jump forward ends leases early: that is the promise that a wall clock can keep. The fence
    // tells the two apart.
    let (owner, lease) = take(&store, &moved, LONG).await;
    server.set_clock(7200);
    let taken = take(&store, &moved, LONG).await.1;
    assert!(taken.fence > lease.fence);
    assert_eq!(extend(&store, &moved, &owner, LONG).await.unwrap(), Extension::NotHeld);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_between_grants_never_lowers_a_fence() {
    if !available() {
        return;
    }
    let server = Server::start_with_clock(&[]);
    migrate(&server.url()).await.unwrap();
    // From here on the time gives no help: every fence comes from the row or from the mark.
    let store = open(&server.url()).await;
    let (owner, _) = take(&store, &key("k0"), LONG).await;
    release(&store, &key("k0"), &owner).await.unwrap();
    for n in 0..4 {
        let owner = take(&store, &key(&format!("k{n}")), LONG).await.0;
        release(&store, &key(&format!("k{n}")), &owner).await.unwrap();
    }
    server.set_clock(-24 * 3600);
    server.sql("UPDATE holdtight.locks SET expires_at = '-infinity'").unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..4 {
        let (store, key, done) =
            (open(&server.url()).await, key(&format!("k{n}")), Arc::clone(&done));
        crowd.spawn(async move {
            let mut last = Fence::new(0);
            while !done.load(Ordering::SeqCst) {
                let (owner, lease) = take(&store, &key, LONG).await;
                assert!(lease.fence > last, "{} after {last}", lease.fence);
                last = lease.fence;
                assert_eq!(release(&store, &key, &owner).await.unwrap(), Release::Released);
            }
        });
    }
    // How often they meet depends on the disk: a row can be removed only while no step is under way
    // on it.
    let met = async {
        let mut removed = 0;
        while removed < 100 {
            removed += store.sweep(Duration::ZERO).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), met).await.expect("the sweep meets the others");
    done.store(true, Ordering::SeqCst);
    while let Some(task) = crowd.join_next().await {
        task.unwrap();
    }
}

#[tokio::test]
async fn a_promoted_standby_that_missed_the_last_grants_repeats_no_fence() {
    if !available() {
        return;
    }
    let mut primary = Server::start(&[]);
    migrate(&primary.url()).await.unwrap();
    // The standby streams through a proxy, which will lose the last grants.
    let wire = Proxy::to(here(primary.port())).await.unwrap();
    let standby = Server::standby_of(wire.port(), primary.port(), &["hot_standby=on"]);
    let both = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres",
        standby.port(),
        primary.port()
    );

    // A standby alone is refused; among several hosts the primary is found.
    let text = refused(PostgresStore::connect(&standby.url()).await, ErrorKind::Unavailable);
    assert!(text.contains("standby"), "{text}");
    let store = open(&both).await;
    let (known, unknown) = (key("known"), key("unknown"));
    let (_, old) = take(&store, &known, LONG).await;
    eventually("the standby has the first grant", async || {
        let there = standby.sql("SELECT count(*) FROM holdtight.locks WHERE key = 'known'");
        (there.as_deref() == Ok("1")).then_some(())
    })
    .await;

    wire.black_hole();
    let (_, lost) = take(&store, &unknown, LONG).await;
    primary.kill_whole();
    wire.down();
    standby.sql("SELECT pg_promote()").unwrap();

    // The same store goes on with the new primary.
    let kept = holder(&store, &known).await.expect("what was replicated is still held");
    assert_eq!(kept.fence, Some(old.fence));
    assert!(holder(&store, &unknown).await.is_none(), "asynchronous replication lost this grant");
    let again = take(&store, &unknown, LONG).await.1;
    assert!(
        again.fence > lost.fence,
        "{} must be above {}, which nobody here remembers",
        again.fence,
        lost.fence
    );
}

#[tokio::test]
async fn a_cancelled_wait_for_the_synchronous_standby_leaves_the_outcome_unknown() {
    if !available() {
        return;
    }
    let server = Server::start(&[]);
    migrate(&server.url()).await.unwrap();
    // The doubt comes as a warning, which a role may not want to hear.
    server.sql("ALTER ROLE postgres SET client_min_messages = error").unwrap();
    let store = open(&format!("{}?timeout=30", server.url())).await;
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").unwrap();
    server.sql("SELECT pg_reload_conf()").unwrap();
    eventually("the setting is read", async || {
        (server.sql("SHOW synchronous_standby_names").as_deref() == Ok("nobody")).then_some(())
    })
    .await;
    let (waiting, owner) = (key("waiting"), secret());
    let call = {
        let (store, waiting, owner) = (Arc::clone(&store), waiting.clone(), owner.clone());
        tokio::spawn(async move { attempt(&store, &waiting, &owner, LONG).await })
    };
    eventually("the grant waits for a standby and is told not to", async || {
        let cancel =
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        (server.sql(cancel).as_deref() == Ok("t")).then_some(())
    })
    .await;
    let text = refused(call.await.unwrap(), ErrorKind::Ambiguous);
    assert!(text.contains("standby"), "{text}");
    // It was done here, which is why "not done" would have been wrong.
    assert!(lookup(&store, &waiting).await.unwrap().is_some());
}

#[tokio::test]
async fn a_row_that_somebody_else_keeps_locked_ends_the_step_in_time_and_the_lease_starts_after_the_wait()
 {
    if !available() {
        return;
    }
    let (server, url) = fresh("row_lock").await;
    let store = open(&url).await;
    let busy = key("busy");
    let (owner, _) = take(&store, &busy, LONG).await;
    release(&store, &busy, &owner).await.unwrap();
    let (locker, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let lock = "BEGIN; SELECT FROM row_lock.locks WHERE key = 'busy' FOR UPDATE";

    locker.batch_execute(lock).await.unwrap();
    let text = refused(attempt(&store, &busy, &secret(), LONG).await, ErrorKind::Unavailable);
    assert!(text.contains("55P03") && text.contains("busy"), "{text}");
    locker.batch_execute("COMMIT").await.unwrap();

    let lease = eventually("a grant that waited", async || {
        locker.batch_execute(lock).await.unwrap();
        let waiting = tokio::spawn({
            let (store, busy) = (Arc::clone(&store), busy.clone());
            async move { attempt(&store, &busy, &secret(), Duration::from_secs(30)).await }
        });
        tokio::time::sleep(Duration::from_millis(1500)).await;
        locker.batch_execute("COMMIT").await.unwrap();
        match waiting.await.unwrap() {
            Ok(Attempt::Granted(lease)) => Some(lease),
            Err(error) if error.kind() == ErrorKind::Unavailable => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert!(
        lease.ttl > Duration::from_secs(29),
        "time spent waiting is not part of the lease: {lease:?}"
    );
}

#[tokio::test]
async fn a_dropped_table_is_named_as_what_it_is_and_migrating_helps() {
    if !available() {
        return;
    }
    let (server, url) = fresh("dropped").await;
    let store = open(&url).await;
    let lost = key("lost");
    let (owner, lease) = take(&store, &lost, LONG).await;
    server.sql("DROP TABLE dropped.locks CASCADE").unwrap();
    let text = refused(extend(&store, &lost, &owner, LONG).await, ErrorKind::InvalidConfig);
    assert!(text.contains("holdtight migrate"), "{text}");
    refused(attempt(&store, &lost, &secret(), LONG).await, ErrorKind::InvalidConfig);
    migrate(&url).await.unwrap();
    assert_eq!(extend(&store, &lost, &owner, LONG).await.unwrap(), Extension::NotHeld);
    let again = take(&store, &lost, LONG).await.1;
    assert!(again.fence > lease.fence);
}

#[tokio::test]
async fn a_server_without_a_free_connection_is_reported_as_such_and_those_who_are_in_go_on() {
    if !available() {
        return;
    }
    let server = Server::start(&["max_connections=6", "superuser_reserved_connections=1"]);
    migrate(&server.url()).await.unwrap();
    server.sql("CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA holdtight TO app").unwrap();
    server.sql("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA holdtight TO app").unwrap();
    let url = format!("postgres://app@127.0.0.1:{}/postgres?connections=1", server.port());
    let mut inside = Vec::new();
    let refusal = loop {
        match PostgresStore::connect(&url).await {
            Ok(store) => inside.push(Arc::new(store)),
            Err(error) => break error,
        }
        assert!(inside.len() <= 6, "somebody must be refused");
    };
    assert_eq!(refusal.kind(), ErrorKind::RateLimited, "{refusal}");
    assert!(refusal.to_string().contains("max_connections"), "{refusal}");
    let held = key("held");
    let (owner, _) = take(&inside[0], &held, LONG).await;
    assert_eq!(release(&inside[1], &held, &owner).await.unwrap(), Release::Released);
    drop(inside.pop());
    eventually("there is room again", async || PostgresStore::connect(&url).await.ok()).await;
}

#[tokio::test]
async fn every_step_is_one_round_trip() {
    if !available() {
        return;
    }
    for options in ["", "&pooler=transaction", "&layout=syncguard"] {
        let server = holdtight_testkit::servers::Postgres::shared().await;
        let wire = Proxy::to(here(server.port())).await.unwrap();
        let url = format!(
            "postgres://postgres@127.0.0.1:{}/postgres?schema=wire&connections=1{options}",
            wire.port()
        );
        migrate(&url).await.unwrap();
        let store = open(&url).await;
        let counted = key("counted");
        // The first extension opens its connection; the first release also looks whether it is time
        // to sweep.
        let (owner, _) = take(&store, &counted, LONG).await;
        extend(&store, &counted, &owner, LONG).await.unwrap();
        release(&store, &counted, &owner).await.unwrap();
        eventually("the background work is over", async || {
            let before = wire.traffic().requests;
            tokio::time::sleep(Duration::from_millis(200)).await;
            (wire.traffic().requests == before).then_some(())
        })
        .await;
        let start = wire.traffic();
        let (owner, _) = take(&store, &counted, LONG).await;
        assert!(matches!(attempt(&store, &counted, &secret(), LONG).await, Ok(Attempt::Busy(_))));
        extend(&store, &counted, &owner, LONG).await.unwrap();
        lookup(&store, &counted).await.unwrap();
        Arc::clone(&store).list("c".to_owned(), 10).await.unwrap();
        release(&store, &counted, &owner).await.unwrap();
        let end = wire.traffic();
        assert_eq!(end.requests - start.requests, 6, "six steps, six requests, with {options:?}");
        assert_eq!(end.connections, start.connections);
    }
}

#[tokio::test]
async fn updates_stay_in_their_page() {
    if !available() {
        return;
    }
    // Its own server: a transaction that stays open anywhere keeps old versions of rows in their
    // pages.
    let server = Server::start(&[]);
    migrate(&server.url()).await.unwrap();
    let store = open(&server.url()).await;
    for n in 0..200 {
        let key = key(&format!("k{}", n % 20));
        let (owner, _) = take(&store, &key, LONG).await;
        extend(&store, &key, &owner, LONG * 2).await.unwrap();
        release(&store, &key, &owner).await.unwrap();
    }
    drop(store);
    let counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'holdtight' AND relname = 'locks'";
    let (all, hot) = eventually("the statistics arrive", async || {
        let line = server.sql(counts).unwrap();
        let (all, hot) = line.split_once('|')?;
        let (all, hot): (u64, u64) = (all.parse().ok()?, hot.parse().ok()?);
        (all >= 500).then_some((all, hot))
    })
    .await;
    assert!(hot * 100 >= all * 95, "{hot} of {all} updates were HOT");
}
