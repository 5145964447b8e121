//! Wake-ups: only for those who wait, one at a time, and nothing but speed is lost when they fail.

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Attempt, Backend as _, DistributedLock, Release};
use holdtight_postgres::{PostgresStore, migrate};
use holdtight_testkit::Proxy;
use holdtight_testkit::servers::{PgBouncer, Postgres, Program};
use support::{
    LONG, PATIENCE, available, eventually, fresh, key, open, queue, release, secret, take,
};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

/// Everything that is notified on some channels.
async fn spy(server: &Postgres, channels: &[&str]) -> mpsc::UnboundedReceiver<(String, String)> {
    let (client, mut connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    let (heard, notes) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message {
                let _ = heard.send((note.channel().to_owned(), note.payload().to_owned()));
            }
        }
    });
    for channel in channels {
        client.batch_execute(&format!("LISTEN \"{channel}\"")).await.unwrap();
    }
    tokio::spawn(async move {
        // The session lives as long as the test.
        let _client = client;
        std::future::pending::<()>().await;
    });
    notes
}

/// The channels in the queue of a key, first in line first.
fn channels(server: &Postgres, schema: &str, key: &str) -> Vec<String> {
    let entries = format!("SELECT unnest(queue) FROM {schema}.locks WHERE key = '{key}'");
    let entries = server.sql(&entries).unwrap();
    let channel =
        |entry: &str| entry.split_once(' ').unwrap().1.split_once('/').unwrap().0.to_owned();
    entries.lines().map(channel).collect()
}

#[tokio::test]
async fn a_release_notifies_the_first_who_waits_and_nobody_if_nobody_does() {
    if !available() {
        return;
    }
    let (server, url) = fresh("one_at_a_time").await;
    let (holder, first, second) = (open(&url).await, open(&url).await, open(&url).await);
    let (shared, mut owner) =
        (key("shared"), take(&open(&url).await, &key("shared"), LONG).await.0);
    let (one, two) = (secret(), secret());
    let _first_bell = Arc::clone(&first).subscribe(shared.clone()).await.unwrap();
    let _second_bell = Arc::clone(&second).subscribe(shared.clone()).await.unwrap();
    assert!(matches!(queue(&first, &shared, &one).await, Attempt::Busy(_)));
    assert!(matches!(queue(&second, &shared, &two).await, Attempt::Busy(_)));
    // Asking again changes neither the order nor the number.
    assert!(matches!(queue(&first, &shared, &one).await, Attempt::Busy(_)));
    let line = channels(&server, "one_at_a_time", "shared");
    assert_eq!(line.len(), 2, "{line:?}");
    let mut notes = spy(&server, &[&line[0], &line[1]]).await;
    let mut heard = async || loop {
        let note = tokio::time::timeout(PATIENCE, notes.recv()).await.expect("a note").unwrap();
        // The listeners of both stores also try themselves out.
        if !note.1.is_empty() {
            return note;
        }
    };

    assert_eq!(release(&holder, &shared, &owner).await.unwrap(), Release::Released);
    assert_eq!(heard().await, (line[0].clone(), "shared".to_owned()));
    let Attempt::Granted(lease) = queue(&first, &shared, &one).await else { panic!("it is free") };
    assert_eq!(lease.contended, Some(true), "the second still waits");
    assert_eq!(release(&first, &shared, &one).await.unwrap(), Release::Released);
    assert_eq!(heard().await, (line[1].clone(), "shared".to_owned()));
    let Attempt::Granted(lease) = queue(&second, &shared, &two).await else { panic!("it is free") };
    assert_eq!(lease.contended, Some(false));
    assert_eq!(release(&second, &shared, &two).await.unwrap(), Release::Released);

    // Nobody waits any more: the next thing that the spy hears is the sign at the end.
    for _ in 0..5 {
        owner = take(&holder, &shared, LONG).await.0;
        release(&holder, &shared, &owner).await.unwrap();
    }
    assert!(channels(&server, "one_at_a_time", "shared").is_empty());
    server.sql(&format!("SELECT pg_notify('{}', 'the end')", line[0])).unwrap();
    assert_eq!(heard().await.1, "the end");
}

#[tokio::test]
async fn a_release_while_the_listening_connection_was_cut_is_heard_when_it_is_back() {
    if !available() {
        return;
    }
    let (server, url) = fresh("cut_ears").await;
    let (holder, waiter) =
        (open(&url).await, open(&format!("{url}&application_name=cut_ears")).await);
    let shared = key("shared");
    for _ in 0..3 {
        let (owner, _) = take(&holder, &shared, LONG).await;
        let me = secret();
        let mut bell = Arc::clone(&waiter).subscribe(shared.clone()).await.unwrap();
        assert!(matches!(queue(&waiter, &shared, &me).await, Attempt::Busy(_)));
        let listening =
            "FROM pg_stat_activity WHERE application_name = 'cut_ears' AND query LIKE 'LISTEN%'";
        eventually("it listens", async || {
            (server.sql(&format!("SELECT count(*) {listening}")).as_deref() == Ok("1"))
                .then_some(())
        })
        .await;
        server.sql(&format!("SELECT pg_terminate_backend(pid) {listening}")).unwrap();
        assert_eq!(release(&holder, &shared, &owner).await.unwrap(), Release::Released);
        tokio::time::timeout(PATIENCE, bell.heard()).await.expect("a ring after the reconnection");
        eventually("the key is ours", async || {
            matches!(queue(&waiter, &shared, &me).await, Attempt::Granted(_)).then_some(())
        })
        .await;
        assert_eq!(release(&waiter, &shared, &me).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn listening_through_a_transaction_pooler_is_found_out_and_given_up() {
    if !available() || !Program::PGBOUNCER.available() {
        return;
    }
    let (server, url) = fresh("deaf").await;
    let bouncer = PgBouncer::start(&server).await;
    // Told nothing about the pooler, the store has to notice.
    let pooled =
        Arc::new(PostgresStore::connect(&format!("{}?schema=deaf", bouncer.url())).await.unwrap());
    let (holder, shared, me) = (open(&url).await, key("shared"), secret());
    let (owner, _) = take(&holder, &shared, LONG).await;
    eventually("no place in the queue is taken in vain", async || {
        assert!(matches!(queue(&pooled, &shared, &me).await, Attempt::Busy(_)));
        release(&pooled, &shared, &me).await.unwrap();
        assert!(matches!(queue(&pooled, &shared, &me).await, Attempt::Busy(_)));
        channels(&server, "deaf", "shared").is_empty().then_some(())
    })
    .await;
    assert_eq!(release(&holder, &shared, &owner).await.unwrap(), Release::Released);
    take(&pooled, &shared, LONG).await;
}

#[tokio::test]
async fn waiters_of_the_engine_get_their_turn_with_and_without_listening() {
    if !available() {
        return;
    }
    let server = Postgres::shared().await;
    for options in ["listen=on", "listen=off", "layout=syncguard"] {
        let url = format!("{}?schema=engine&{options}", server.url());
        migrate(&url).await.unwrap();
        let lock = async || {
            let store = PostgresStore::connect(&url).await.unwrap();
            DistributedLock::builder(store)
                .ttl(Duration::from_secs(30))
                .wait(PATIENCE)
                .build()
                .unwrap()
        };
        let (one, two) = (lock().await, lock().await);
        let mut last = None;
        for _ in 0..3 {
            let held = one.acquire("turn").await.unwrap();
            let waiting = tokio::spawn({
                let two = two.clone();
                async move { two.acquire("turn").await }
            });
            tokio::time::sleep(Duration::from_millis(20)).await;
            let before = held.fence();
            held.release().await.unwrap();
            let next = waiting.await.unwrap().unwrap();
            assert!(next.fence() > before && Some(before) > last, "{options}");
            last = Some(next.fence());
            next.release().await.unwrap();
        }
        one.shutdown().await.unwrap();
        two.shutdown().await.unwrap();
    }
}

/// A lock per process, as it were, all through one proxy that counts.
async fn counted(schema: &str, processes: usize) -> Option<(Proxy, Vec<DistributedLock>)> {
    if !available() {
        return None;
    }
    let (server, url) = fresh(schema).await;
    let wire = Proxy::to(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()))).await.unwrap();
    let url = url.replace(&format!(":{}/", server.port()), &format!(":{}/", wire.port()));
    let mut locks = Vec::new();
    for _ in 0..processes {
        let store = PostgresStore::connect(&format!("{url}&connections=1")).await.unwrap();
        locks.push(DistributedLock::builder(store).wait_forever().build().unwrap());
    }
    Some((wire, locks))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_of_ten_processes_hardly_ask() {
    let Some((wire, locks)) = counted("patient", 10).await else { return };
    let held = locks[0].acquire("slow").ttl(Duration::from_secs(120)).await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..1000 {
        let lock = locks[number % locks.len()].clone();
        waiters.spawn(async move { drop(lock.acquire("slow").await) });
    }
    // All are in line, and their listeners are open, when it has become quiet.
    eventually("it is quiet", async || {
        let before = wire.traffic().requests;
        tokio::time::sleep(Duration::from_secs(1)).await;
        (wire.traffic().requests - before <= 20).then_some(())
    })
    .await;
    let (before, started) = (wire.traffic().requests, std::time::Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (asked, seconds) = (wire.traffic().requests - before, started.elapsed().as_secs_f64());
    println!("{asked} requests in {seconds:.1} s");
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let rate = asked as f64 / seconds;
    assert!(rate <= 20.0, "1000 waiters ask {rate:.1} times a second");
    waiters.abort_all();
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_between_processes_costs_few_requests() {
    let Some((wire, locks)) = counted("hand_off", 8).await else { return };
    let start = wire.traffic().requests;
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..64 {
        let lock = locks[number % locks.len()].clone();
        workers.spawn(async move {
            for _ in 0..4 {
                let held = lock.acquire("hot").await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                held.release().await.unwrap();
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    let requests = wire.traffic().requests - start;
    println!("{requests} requests for 256 turns");
    // At most four each, and what opening connections costs.
    assert!(requests <= 4 * 256 + 200, "{requests} requests for 256 turns");
}
