//! Mutual exclusion with the locks that already live in Redis, against the real libraries, in both
//! directions.
//!
//! The other side is a small program of ours under `tests/peers/` around somebody else's library.
//! The libraries are installed once into `target/peers`; without npm or pip these tests say so and
//! are skipped, except in CI.

mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use holdtight_core::{Attempt, Extension, Intent, Key, KeyForm, Release, Secret};
use holdtight_redis::RedisStore;
use holdtight_testkit::servers::Redis;
use serde_json::{Value, json};
use support::{
    LONG, PATIENCE, admin, attempt, busy, connect, count, extend, granted, granted_for, lookup,
    release, secret, until,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const NPM: [&str; 4] =
    ["ioredis@5", "redlock@5.0.0-beta.2", "@sesamecare-oss/redlock@1", "redis@4"];
const PIP: [&str; 1] = ["redis==8.1.0"];

/// Where the libraries are, installed on first use; an error says what is missing.
fn installed(what: &'static str) -> Result<PathBuf, String> {
    static LOCK: Mutex<()> = Mutex::new(());
    let _one = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("peers");
    let (directory, program, arguments): (_, _, Vec<&str>) = if what == "node" {
        let arguments = ["install", "--no-audit", "--no-fund", "--prefix", "."];
        (target.join("node"), "npm", arguments.into_iter().chain(NPM).collect())
    } else {
        let arguments = ["-m", "pip", "install", "--quiet", "--target", "."];
        (target.join("python"), "python3", arguments.into_iter().chain(PIP).collect())
    };
    // The list of packages is part of the mark, so a change of versions installs again.
    let mark = directory.join("installed");
    let wanted = arguments.join(" ");
    if std::fs::read_to_string(&mark).is_ok_and(|done| done == wanted) {
        return Ok(directory);
    }
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let output = std::process::Command::new(program)
        .args(&arguments)
        .current_dir(&directory)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program} is needed to install the other side: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::write(mark, wanted).map_err(|error| error.to_string())?;
    Ok(directory)
}

static NODE: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| installed("node"));
static PYTHON: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| installed("python"));

/// The other process.
struct Peer {
    _child: Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts `library`; `None`, said aloud, if it cannot be installed here.
    fn start(library: &str, server: &Redis) -> Option<Self> {
        let is_python = library == "redis-py";
        let packages = match if is_python { &*PYTHON } else { &*NODE } {
            Ok(packages) => packages,
            Err(missing) => {
                assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "{missing}");
                eprintln!("SKIPPED: {missing}");
                return None;
            }
        };
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
        let mut command = if is_python {
            let mut command = Command::new("python3");
            command.arg(peers.join("peer.py"));
            command
        } else {
            let mut command = Command::new("node");
            command.arg(peers.join("peer.mjs"));
            command
        };
        command.arg(library).arg(server.port().to_string()).arg(packages);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Some(Self { requests: child.stdin.take().unwrap(), answers, _child: child })
    }

    async fn ask(&mut self, request: Value) -> Value {
        self.requests.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE * 6, self.answers.next_line()).await;
        let answer: Value =
            serde_json::from_str(&answer.unwrap().unwrap().expect("the peer ended")).unwrap();
        assert!(answer.get("error").is_none(), "{request}: {answer}");
        answer
    }

    async fn yes(&mut self, request: Value) -> bool {
        self.ask(request).await["ok"].as_bool().unwrap()
    }
}

/// A key in the form of the layout under test.
fn name(text: &str) -> Key {
    Key::with_form(text, KeyForm::Verbatim).unwrap()
}

/// What each side sees of the other: refusal, release, expiry, extension. `seen` is the key as the
/// peer names it.
async fn both_directions(peer: &mut Peer, store: &Arc<RedisStore>, key: &Key, seen: &str) {
    // Theirs keeps us out, and is never overwritten.
    assert!(peer.yes(json!({"op": "acquire", "key": seen, "ttl": 60_000})).await);
    let refused = busy(store, key, &secret(), Intent::Queue).await;
    assert!(refused.holder.unwrap().remaining.unwrap() <= LONG + Duration::from_secs(1));
    assert!(lookup(store, key).await.is_some());
    assert_eq!(release(store, key, &secret()).await, Release::NotHeld);
    assert!(peer.yes(json!({"op": "release", "key": seen})).await, "it was still theirs");

    // Ours keeps them out.
    let me = secret();
    let first = granted(store, key, &me).await;
    assert!(!peer.yes(json!({"op": "acquire", "key": seen, "ttl": 60_000})).await);
    assert!(matches!(extend(store, key, &me, LONG).await.unwrap(), Extension::Extended(_)));
    assert_eq!(release(store, key, &me).await, Release::Released);

    // Ours ends by itself, then they get it; theirs, extended, outlives its first lease, and ends
    // by itself too.
    granted_for(store, key, &me, Duration::from_millis(300)).await;
    until("they get what expired", async || {
        peer.yes(json!({"op": "acquire", "key": seen, "ttl": 60_000})).await
    })
    .await;
    assert!(peer.yes(json!({"op": "extend", "key": seen, "ttl": 120_000})).await);
    let refused = busy(store, key, &me, Intent::Try).await;
    assert!(refused.retry_after.unwrap() > LONG, "{refused:?}");
    assert!(peer.yes(json!({"op": "release", "key": seen})).await);
    assert!(peer.yes(json!({"op": "acquire", "key": seen, "ttl": 1_000})).await);
    until("we get what expired", async || {
        matches!(attempt(store, key, &me, Intent::Try).await.unwrap(), Attempt::Granted(lease) if lease.fence > first.fence)
    })
    .await;
    assert_eq!(release(store, key, &me).await, Release::Released);
}

/// Two processes add to one counter under one lock. Not one update may be lost.
async fn shared_counter(
    peer: &mut Peer,
    store: &Arc<RedisStore>,
    server: &Redis,
    key: &Key,
    seen: &str,
) {
    const EACH: u32 = 1_000;
    let connection = redis::Client::open(server.url()).unwrap();
    // The client's own patience is half a second, less than a starved machine needs.
    let settings = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let mut connection =
        connection.get_multiplexed_async_connection_with_config(&settings).await.unwrap();
    let ours = async {
        let mut refused = 0;
        let mut last = 0;
        for _ in 0..EACH {
            let me = secret();
            let lease = loop {
                match attempt(store, key, &me, Intent::Queue).await.unwrap() {
                    Attempt::Granted(lease) => break lease,
                    _ => refused += 1,
                }
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3_000))).await;
            };
            assert!(lease.fence.get() > last, "fences rise");
            last = lease.fence.get();
            let seen: Option<u32> =
                redis::cmd("GET").arg("counter").query_async(&mut connection).await.unwrap();
            let next = seen.unwrap_or(0) + 1;
            redis::cmd("SET").arg("counter").arg(next).exec_async(&mut connection).await.unwrap();
            assert_eq!(release(store, key, &me).await, Release::Released);
        }
        refused
    };
    let theirs = peer.ask(json!({
        "op": "count", "key": seen, "counter": "counter", "cycles": EACH, "ttl": 60_000,
    }));
    let (refused, theirs) = tokio::join!(ours, theirs);
    assert_eq!(theirs["ok"], json!(true), "{theirs}");
    assert!(refused + theirs["refused"].as_u64().unwrap() > 0, "the two never met");
    let total = admin(server, "GET counter").await;
    assert!(total.contains(&(2 * EACH).to_string()), "updates were lost: {total}");
}

/// A test of one library in one layout.
macro_rules! with_peer {
    ($($name:ident: $library:literal, $options:literal, $prefix:literal, $shared:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if support::redis_is_missing() {
                return;
            }
            let server = Redis::start().await;
            let Some(mut peer) = Peer::start($library, &server) else { return };
            let store = connect(&format!("{}?{}", server.url(), $options)).await;
            for key in ["user:123", "caf\u{e9} \u{1f512}"] {
                both_directions(&mut peer, &store, &name(key), &format!("{}{key}", $prefix)).await;
            }
            if $shared {
                shared_counter(&mut peer, &store, &server, &name("shared"), concat!($prefix, "shared")).await;
            }
        }
    )*};
}

with_peer! {
    native_and_lilith_exclude_each_other: "lilith", "prefix=lock:", "lock:", true;
    token_and_lilith_exclude_each_other: "lilith", "layout=token&prefix=lock:", "lock:", true;
    native_and_redlock_exclude_each_other: "redlock", "prefix=", "", true;
    token_and_redlock_exclude_each_other: "redlock", "layout=token", "", false;
    native_and_sesamecare_exclude_each_other: "sesamecare", "prefix=", "", true;
    token_and_sesamecare_exclude_each_other: "sesamecare", "layout=token", "", false;
    // maestro releases in two steps (GET, then DEL); that is its own hole, so leases here outlive
    // the test.
    native_and_maestro_exclude_each_other: "maestro", "prefix=", "", true;
    token_and_maestro_exclude_each_other: "maestro", "layout=token", "", false;
    native_and_redis_py_exclude_each_other: "redis-py", "prefix=", "", true;
    token_and_redis_py_exclude_each_other: "redis-py", "layout=token", "", true;
    syncguard_and_its_node_flow_exclude_each_other: "syncguard", "layout=syncguard", "", true;
}

/// In the token layout a lock changes hands between programs: the secret is the whole right to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_handed_to_another_program_and_taken_from_one() {
    if support::redis_is_missing() {
        return;
    }
    let server = Redis::start().await;
    let store = connect(&format!("{}?layout=token&prefix=lock:", server.url())).await;
    for library in ["lilith", "redis-py"] {
        let Some(mut peer) = Peer::start(library, &server) else { return };
        let (key, seen, me) = (name("job"), "lock:job", secret());
        // Ours: they extend and release it.
        let ours = granted(&store, &key, &me).await;
        assert_eq!(admin(&server, "GET lock:job").await, format!("$22\r\n{}\r\n", me.expose()));
        assert!(
            peer.yes(json!({"op": "extend", "key": seen, "token": me.expose(), "ttl": 120_000}))
                .await
        );
        assert!(count(&server, "PTTL lock:job").await > 60_000);
        let Extension::Extended(now) = extend(&store, &key, &me, Duration::ZERO).await.unwrap()
        else {
            panic!()
        };
        assert_eq!(now.fence, ours.fence);
        assert!(now.ttl > LONG, "their extension is seen");
        assert!(peer.yes(json!({"op": "release", "key": seen, "token": me.expose()})).await);
        assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
        // Theirs: we resume it, which mints its first fence, keep that fence, and release it.
        let theirs = peer.ask(json!({"op": "acquire", "key": seen, "ttl": 60_000})).await;
        let theirs = Secret::parse(theirs["token"].as_str().unwrap()).unwrap();
        assert!(lookup(&store, &key).await.unwrap().fence.is_none());
        let Extension::Extended(first) = extend(&store, &key, &theirs, LONG * 2).await.unwrap()
        else {
            panic!()
        };
        let Extension::Extended(again) = extend(&store, &key, &theirs, LONG * 2).await.unwrap()
        else {
            panic!()
        };
        assert!(first.fence == again.fence && first.fence > ours.fence);
        assert_eq!(lookup(&store, &key).await.unwrap().fence, Some(first.fence));
        assert_eq!(release(&store, &key, &theirs).await, Release::Released);
        assert!(!peer.yes(json!({"op": "release", "key": seen})).await);
        assert_eq!(count(&server, "DBSIZE").await, 1, "only the counter stays");
    }
}

/// What stands in Redis is what Node's syncguard writes and reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn syncguard_locks_are_written_and_read_as_node_does() {
    if support::redis_is_missing() {
        return;
    }
    let server = Redis::start().await;
    let Some(mut peer) = Peer::start("syncguard", &server) else { return };
    let store = connect(&format!("{}?layout=syncguard", server.url())).await;
    for key in ["resource:123", "a/b \"c\" é", &"long".repeat(128), "id:user:7", "fence:north"] {
        let (key, me) = (Key::new(key).unwrap(), secret());
        let lease = granted(&store, &key, &me).await;
        let lock = peer.ask(json!({"op": "lookup", "key": key.as_str()})).await["lock"].clone();
        assert_eq!(lock["lockId"], json!(me.expose()));
        assert_eq!(lock["key"], json!(key.as_str()));
        assert_eq!(lock["fence"], json!(format!("{:015}", lease.fence.get())));
        let span = lock["expiresAtMs"].as_u64().unwrap() - lock["acquiredAtMs"].as_u64().unwrap();
        assert_eq!(span, 60_000);
        // Node extends and releases ours by its id alone: the index is right.
        assert!(
            peer.yes(
                json!({"op": "extend", "key": key.as_str(), "token": me.expose(), "ttl": 90_000})
            )
            .await
        );
        let Extension::Extended(now) = extend(&store, &key, &me, Duration::ZERO).await.unwrap()
        else {
            panic!()
        };
        assert!(now.fence == lease.fence && now.ttl > LONG);
        assert!(
            peer.yes(json!({"op": "release", "key": key.as_str(), "token": me.expose()})).await
        );
        assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
        // Fences are one sequence for both.
        let theirs = peer.ask(json!({"op": "acquire", "key": key.as_str(), "ttl": 60_000})).await;
        let fence: u64 = theirs["fence"].as_str().unwrap().parse().unwrap();
        assert_eq!(fence, lease.fence.get() + 1);
        let shown = lookup(&store, &key).await.unwrap();
        assert_eq!(shown.fence.unwrap().get(), fence);
        let token = Secret::parse(theirs["token"].as_str().unwrap()).unwrap();
        assert_eq!(release(&store, &key, &token).await, Release::Released, "by key and id");
        assert!(granted(&store, &key, &me).await.fence.get() > fence);
        assert_eq!(release(&store, &key, &me).await, Release::Released);
    }
    // The weaknesses that are closed here: names that meet, the tolerance, the end of the counter.
    let counter = name("fence:syncguard:resource:123");
    let error = attempt(&store, &counter, &secret(), Intent::Try).await.unwrap_err();
    assert_eq!(error.kind(), holdtight_core::ErrorKind::InvalidKey);
    let me = secret();
    granted(&store, &name("tolerant"), &me).await;
    let key_lives = count(&server, "PTTL syncguard:tolerant").await;
    let left = lookup(&store, &name("tolerant")).await.unwrap().remaining.unwrap();
    let left = i64::try_from(left.as_millis()).unwrap();
    assert!(key_lives >= left + 999, "contenders wait a second longer: {key_lives}, {left}");
    admin(&server, "SET syncguard:fence:syncguard:end 900000000000000").await;
    let error = attempt(&store, &name("end"), &me, Intent::Try).await.unwrap_err();
    assert!(error.to_string().contains("fence"), "{error}");
    assert_eq!(
        count(&server, "EXISTS syncguard:end").await,
        0,
        "refused before anything is written"
    );
    admin(&server, "SET syncguard:foreign not-json").await;
    assert!(
        busy(&store, &name("foreign"), &me, Intent::Queue).await.holder.unwrap().fence.is_none()
    );
}
