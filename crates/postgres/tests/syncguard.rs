//! The syncguard layout shared with a Node program that follows the package's own flow: both
//! exclude each other.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Attempt, ErrorKind, Extension, Fence, Release, Secret};
use holdtight_postgres::{PostgresStore, migrate};
use holdtight_testkit::servers::Postgres;
use serde_json::{Value, json};
use support::{
    LONG, PATIENCE, attempt, available, eventually, extend, key, lookup, open, release, secret,
    take,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

/// The Node program, listening for commands.
struct Peer {
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Peer {
    fn start(server: &Postgres, schema: &str) -> Self {
        let mut node = tokio::process::Command::new("node");
        node.arg(peers().join("syncguard_peer.mjs")).arg(server.url()).arg(schema);
        let mut process =
            node.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { commands: process.stdin.take().unwrap(), answers, _process: process }
    }

    async fn send(&mut self, command: Value) {
        self.commands.write_all(format!("{command}\n").as_bytes()).await.unwrap();
    }

    async fn answer(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.answers.next_line()).await;
        let line = line.expect("the peer answers in time").unwrap().expect("the peer lives");
        serde_json::from_str(&line).unwrap()
    }

    async fn ask(&mut self, command: Value) -> Value {
        self.send(command).await;
        let answer = self.answer().await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer
    }
}

/// Where the program stands with the package it needs, which is fetched once.
fn peers() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("postgres-peers")
}

/// Whether Node and the package are there. Missing is a failure where `CI=true`.
fn peers_available() -> bool {
    static FETCHED: std::sync::OnceLock<Result<(), String>> = std::sync::OnceLock::new();
    let fetched = FETCHED.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
        fs::create_dir_all(peers()).map_err(|error| error.to_string())?;
        for file in ["package.json", "package-lock.json", "syncguard_peer.mjs"] {
            fs::copy(source.join(file), peers().join(file)).map_err(|error| error.to_string())?;
        }
        if peers().join("node_modules/postgres/package.json").is_file() {
            return Ok(());
        }
        let npm = Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund"])
            .current_dir(peers())
            .output();
        match npm {
            Ok(ran) if ran.status.success() => Ok(()),
            Ok(ran) => Err(String::from_utf8_lossy(&ran.stderr).into_owned()),
            Err(error) => {
                Err(format!("npm is not installed (apt-get install nodejs npm): {error}"))
            }
        }
    });
    if let Err(missing) = fetched {
        assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "{missing}");
        eprintln!("skipped: {missing}");
        return false;
    }
    true
}

async fn both(schema: &str) -> Option<(Arc<Postgres>, Arc<PostgresStore>, Peer)> {
    if !available() || !peers_available() {
        return None;
    }
    let server = Postgres::shared().await;
    let url = format!("{}?schema={schema}&layout=syncguard", server.url());
    migrate(&url).await.unwrap();
    let store = open(&url).await;
    let peer = Peer::start(&server, schema);
    Some((server, store, peer))
}

fn fence(answer: &Value) -> Fence {
    answer["fence"].as_str().unwrap().parse().unwrap()
}

fn id(answer: &Value) -> Secret {
    Secret::parse(answer["lockId"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn node_and_rust_refuse_each_other_and_their_fences_grow_together() {
    let Some((_, store, mut node)) = both("peer_turns").await else { return };
    let shared = key("café");
    let mut last = Fence::new(0);
    for _ in 0..3 {
        let theirs = node.ask(json!({"op": "acquire", "key": "café", "ttlMs": 60000})).await;
        assert_eq!(theirs["ok"], true);
        assert!(fence(&theirs) > last, "{} after {last}", fence(&theirs));
        let Ok(Attempt::Busy(busy)) = attempt(&store, &shared, &secret(), LONG).await else {
            panic!("Node holds it")
        };
        assert_eq!(busy.holder.unwrap().fence, Some(fence(&theirs)));
        assert_eq!(
            node.ask(json!({"op": "release", "lockId": theirs["lockId"]})).await["ok"],
            true
        );

        let (owner, ours) = take(&store, &shared, LONG).await;
        assert!(ours.fence > fence(&theirs));
        assert_eq!(
            node.ask(json!({"op": "acquire", "key": "café", "ttlMs": 60000})).await["ok"],
            false
        );
        assert_eq!(node.ask(json!({"op": "isLocked", "key": "café"})).await["ok"], true);
        assert_eq!(release(&store, &shared, &owner).await.unwrap(), Release::Released);
        assert_eq!(node.ask(json!({"op": "isLocked", "key": "café"})).await["ok"], false);
        last = ours.fence;
    }
}

#[tokio::test]
async fn a_lock_that_one_side_took_can_be_extended_and_released_by_the_other() {
    let Some((server, store, mut node)) = both("peer_tokens").await else { return };
    let (ours, theirs) = (key("ours"), key("theirs"));
    let (owner, lease) = take(&store, &ours, LONG).await;
    let row =
        "SELECT fence, user_key, expires_at_ms - acquired_at_ms FROM peer_tokens.syncguard_locks";
    assert_eq!(server.sql(row).unwrap(), format!("{:015}|ours|600000", lease.fence.get()));
    let extended =
        node.ask(json!({"op": "extend", "lockId": owner.expose(), "ttlMs": 60000})).await;
    assert_eq!(extended["ok"], true);
    assert_eq!(node.ask(json!({"op": "release", "lockId": owner.expose()})).await["ok"], true);
    assert_eq!(release(&store, &ours, &owner).await.unwrap(), Release::NotHeld);

    let taken = node.ask(json!({"op": "acquire", "key": "theirs", "ttlMs": 60000})).await;
    let Extension::Extended(lease) = extend(&store, &theirs, &id(&taken), LONG).await.unwrap()
    else {
        panic!("it is held")
    };
    assert_eq!(lease.fence, fence(&taken));
    assert_eq!(release(&store, &theirs, &id(&taken)).await.unwrap(), Release::Released);
    assert_eq!(node.ask(json!({"op": "release", "lockId": taken["lockId"]})).await["ok"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_and_rust_racing_for_one_key_are_never_inside_together() {
    let Some((server, store, mut node)) = both("peer_race").await else { return };
    server
        .sql(
            "CREATE TABLE peer_race.inside (n int); INSERT INTO peer_race.inside VALUES (0);
             CREATE TABLE peer_race.granted (at serial, fence text)",
        )
        .unwrap();
    let (client, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    node.send(json!({"op": "race", "key": "hot", "turns": 40})).await;
    let hot = key("hot");
    for _ in 0..40 {
        let me = secret();
        let lease = eventually("our turn comes", async || {
            match attempt(&store, &hot, &me, LONG).await {
                Ok(Attempt::Granted(lease)) => Some(lease),
                Ok(_) => None,
                // Node stood still with the advisory lock.
                Err(error) => {
                    assert!(error.kind().is_transient(), "{error}");
                    None
                }
            }
        })
        .await;
        let entered: i32 = client
            .query_one("UPDATE peer_race.inside SET n = n + 1 RETURNING n", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(entered, 1, "Node is inside");
        client.execute("UPDATE peer_race.inside SET n = n - 1", &[]).await.unwrap();
        let fence = format!("{:015}", lease.fence.get());
        client
            .execute("INSERT INTO peer_race.granted (fence) VALUES ($1)", &[&fence])
            .await
            .unwrap();
        assert_eq!(release(&store, &hot, &me).await.unwrap(), Release::Released);
    }
    assert_eq!(node.answer().await, json!({"ok": true, "turns": 40}));
    let order = "SELECT count(*), count(*) FILTER (WHERE fence <= before) FROM
        (SELECT fence, lag(fence) OVER (ORDER BY at) AS before FROM peer_race.granted) AS g";
    assert_eq!(server.sql(order).unwrap(), "80|0", "every fence is above the one before it");
}

#[tokio::test]
async fn a_stalled_extension_of_node_is_waited_for_and_not_overtaken() {
    let Some((server, store, mut node)) = both("peer_extend").await else { return };
    let theirs = node.ask(json!({"op": "acquire", "key": "w4", "ttlMs": 2000})).await;
    // Node has found its lock alive and will write that it stays so.
    node.send(json!({"op": "extend", "lockId": theirs["lockId"], "ttlMs": 60000, "stallMs": 5000}))
        .await;
    assert_eq!(node.answer().await, json!({"stalled": true}));
    let over = "SELECT expires_at_ms + 1000 < extract(epoch FROM clock_timestamp()) * 1000 FROM peer_extend.syncguard_locks";
    eventually("the row looks expired", async || {
        (server.sql(over).as_deref() == Ok("t")).then_some(())
    })
    .await;
    let refused = attempt(&store, &key("w4"), &secret(), LONG).await;
    assert!(
        !matches!(refused, Ok(Attempt::Granted(_))),
        "Node's extension is under way: {refused:?}"
    );
    assert_eq!(node.answer().await, json!({"ok": true}));
    assert!(matches!(attempt(&store, &key("w4"), &secret(), LONG).await, Ok(Attempt::Busy(_))));
}

#[tokio::test]
async fn our_extension_waits_for_a_stalled_acquire_of_node() {
    let Some((_, store, mut node)) = both("peer_acquire").await else { return };
    let w4 = key("w4");
    let (owner, ours) = take(&store, &w4, Duration::from_millis(200)).await;
    eventually("the lease is over", async || {
        lookup(&store, &w4).await.unwrap().is_none().then_some(())
    })
    .await;
    // Node has found the key free and will write that it took it.
    node.send(json!({"op": "acquire", "key": "w4", "ttlMs": 60000, "stallMs": 500})).await;
    assert_eq!(node.answer().await, json!({"stalled": true}));
    let extension = tokio::spawn({
        let (store, w4, owner) = (Arc::clone(&store), w4.clone(), owner.clone());
        async move { extend(&store, &w4, &owner, LONG).await }
    });
    let theirs = node.answer().await;
    assert!(fence(&theirs) > ours.fence);
    assert_eq!(extension.await.unwrap().unwrap(), Extension::NotHeld);
    assert!(matches!(extend(&store, &w4, &id(&theirs), LONG).await, Ok(Extension::Extended(_))));
}

#[tokio::test]
async fn time_spent_waiting_for_the_advisory_lock_is_not_part_of_the_lease() {
    if !available() {
        return;
    }
    let server = Postgres::shared().await;
    let url = format!("{}?schema=peer_clock&layout=syncguard", server.url());
    migrate(&url).await.unwrap();
    let store = open(&url).await;
    let (locker, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let now = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let over: i64 = eventually("a grant that waited", async || {
        let lock = "BEGIN; SELECT pg_advisory_xact_lock(hashtext('w5'))";
        locker.batch_execute(lock).await.unwrap();
        let waiting = tokio::spawn({
            let store = Arc::clone(&store);
            async move { attempt(&store, &key("w5"), &secret(), Duration::from_secs(30)).await }
        });
        tokio::time::sleep(Duration::from_millis(1200)).await;
        // The wait ends no earlier than this.
        let over = locker.query_one(now, &[]).await.unwrap().get(0);
        locker.batch_execute("COMMIT").await.unwrap();
        match waiting.await.unwrap() {
            Ok(Attempt::Granted(_)) => Some(over),
            Err(error) if error.kind() == ErrorKind::Unavailable => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
    let row =
        server.sql("SELECT acquired_at_ms, expires_at_ms FROM peer_clock.syncguard_locks").unwrap();
    let (acquired, expires) = row.split_once('|').unwrap();
    let (acquired, expires): (i64, i64) = (acquired.parse().unwrap(), expires.parse().unwrap());
    assert!(acquired >= over, "the clock was read {} ms before the lock was had", over - acquired);
    assert_eq!(expires - acquired, 30_000);
}

#[tokio::test]
async fn a_sweep_removes_rows_of_leases_long_over_and_keeps_fences_and_live_locks() {
    if !available() {
        return;
    }
    let server = Postgres::shared().await;
    // The longest name there is, with a capital, as Node takes it.
    let table = format!("Locks_{}", "x".repeat(51));
    let url = format!("{}?schema=peer_sweep&table={table}&layout=syncguard", server.url());
    migrate(&url).await.unwrap();
    let store = open(&url).await;
    let (left, held) = (key("left"), key("held"));
    let (_, first) = take(&store, &left, Duration::from_millis(1)).await;
    take(&store, &held, LONG).await;
    let indexes = format!("SELECT count(*) FROM pg_indexes WHERE tablename = '{table}'");
    assert_eq!(server.sql(&indexes).unwrap(), "3", "of key, of lock id, of the end");
    eventually("the row is removed", async || {
        (store.sweep(Duration::ZERO).await.unwrap() == 1).then_some(())
    })
    .await;
    assert_eq!(store.sweep(Duration::ZERO).await.unwrap(), 0);
    assert!(lookup(&store, &held).await.unwrap().is_some());
    let again = take(&store, &left, LONG).await.1;
    assert!(again.fence > first.fence);
}
