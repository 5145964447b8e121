//! A Firestore that lies, fails, or lives an hour in the past or future: no false grant, and only
//! its own times count.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend as _, ErrorKind, ExtendBy, ExtendRequest, Extension, Key,
    Level, LockError, Release, Secret,
};
use holdtight_firestore::FirestoreStore;
use holdtight_testkit::Proxy;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

const EMULATOR: &str = "FIRESTORE_EMULATOR_HOST";
const TTL: Duration = Duration::from_secs(30);

/// Answers to the next requests of a method, first come, first served; the last one stays.
type Script = Arc<Mutex<Vec<(&'static str, Vec<(u16, String)>)>>>;

/// Speaks just enough HTTP.
struct Fake {
    url: String,
    script: Script,
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

impl Fake {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("firestore://fake?timeout=1s&emulator={address}");
        let (script, asked) = (Script::default(), Arc::default());
        let fake = Self { url, script: Arc::clone(&script), asked: Arc::clone(&asked) };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&script), Arc::clone(&asked)));
            }
        });
        fake.say("batchGet", &[(200, missing("2026-01-01T00:00:00Z"))]);
        fake
    }

    fn say(&self, method: &'static str, answers: &[(u16, String)]) {
        let mut script = self.script.lock().unwrap();
        script.retain(|(known, _)| *known != method);
        script.push((method, answers.to_vec()));
    }

    fn commits(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|(path, _)| path.ends_with(":commit"))
            .map(|(_, body)| body.clone())
            .collect()
    }
}

async fn serve(stream: TcpStream, script: Script, asked: Arc<Mutex<Vec<(String, String)>>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut path, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            if path.is_empty() {
                path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        let body = String::from_utf8(body).unwrap();
        asked.lock().unwrap().push((path.clone(), body.clone()));
        let (status, answer) = {
            let mut script = script.lock().unwrap();
            // Where a document is to be read, none can be made.
            let stands = |(method, answers): &(&str, Vec<(u16, String)>)| {
                *method == "batchGet" && answers[0].1.contains("\"found\"")
            };
            let refuses = body.contains(r#""exists":false"#) && script.iter().any(stands);
            let answers = script.iter_mut().find(|(method, _)| path.ends_with(method));
            let answers = answers.map(|(_, answers)| answers);
            match answers.filter(|_| !refuses) {
                _ if refuses => (409, failure("ALREADY_EXISTS")),
                Some(answers) if answers.len() > 1 => answers.remove(0),
                Some(answers) => answers[0].clone(),
                None => (500, String::new()),
            }
        };
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

const NAME: &str = "projects/fake/databases/(default)/documents/holdtight_locks/k:job";

fn missing(read: &str) -> String {
    format!(r#"[{{"missing":"{NAME}","readTime":"{read}"}}]"#)
}

fn found(secret: &Secret, updated: &str, read: &str) -> String {
    let fields = format!(
        r#"{{"secret":{{"stringValue":"{}"}},"key":{{"stringValue":"job"}},"owner":{{"stringValue":"host=a"}},
        "leaseMicros":{{"integerValue":"30000000"}},"renewals":{{"integerValue":"0"}}}}"#,
        secret.expose()
    );
    format!(
        r#"[{{"found":{{"name":"{NAME}","fields":{fields},"updateTime":"{updated}"}},"readTime":"{read}"}}]"#
    )
}

fn committed(time: &str) -> String {
    format!(r#"{{"writeResults":[{{"updateTime":"{time}"}}],"commitTime":"{time}"}}"#)
}

fn failure(status: &str) -> String {
    format!(r#"{{"error":{{"code":1,"message":"hunter2","status":"{status}"}}}}"#)
}

async fn connect(fake: &Fake) -> Arc<FirestoreStore> {
    Arc::new(FirestoreStore::connect(&fake.url).await.unwrap())
}

fn key() -> Key {
    Key::new("job").unwrap()
}

fn secret() -> Secret {
    Secret::generate().unwrap()
}

async fn attempt(store: &Arc<FirestoreStore>, secret: &Secret) -> Result<Attempt, LockError> {
    Arc::clone(store).acquire(AcquireRequest::new(key(), secret.clone(), TTL)).await
}

async fn extend(store: &Arc<FirestoreStore>, secret: &Secret) -> Result<Extension, LockError> {
    let request = ExtendRequest::new(key(), secret.clone(), ExtendBy::AtLeast(TTL));
    Arc::clone(store).extend(vec![request]).await?.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_ends_by_the_servers_times_whatever_this_machine_thinks() {
    let fake = Fake::start().await;
    let (store, me, other) = (connect(&fake).await, secret(), secret());
    // Far from any clock here: long ago, and long ahead.
    for year in ["1999", "2026", "2095"] {
        let time = |clock: &str| format!("{year}-06-01T12:{clock}Z");
        fake.say("commit", &[(200, committed(&time("59:00.000005")))]);
        fake.say("batchGet", &[(200, found(&other, &time("00:00"), &time("00:29.9")))]);
        match attempt(&store, &me).await.unwrap() {
            // Then it is over, and others wait a little longer to be sure.
            Attempt::Busy(busy) => assert_eq!(busy.retry_after, Some(Duration::from_millis(200))),
            other => panic!("not over yet in {year}: {other:?}"),
        }
        assert!(matches!(extend(&store, &other).await.unwrap(), Extension::Extended(_)));
        fake.say("batchGet", &[(200, found(&other, &time("00:00"), &time("00:30.2")))]);
        match attempt(&store, &me).await.unwrap() {
            Attempt::Granted(lease) => {
                assert_eq!(lease.fence.get() % 1_000_000, 5, "the time of the commit");
            }
            other => panic!("over in {year}: {other:?}"),
        }
        assert_eq!(extend(&store, &other).await.unwrap(), Extension::NotHeld, "nothing is revived");
        let released = Arc::clone(&store).release(key(), other.clone()).await.unwrap();
        assert_eq!(released, Release::NotHeld);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_aborts_is_waited_out_and_an_endless_one_is_given_up() {
    let fake = Fake::start().await;
    let (store, me) = (connect(&fake).await, secret());
    let aborted = || (409, failure("ABORTED"));
    let done = (200, committed("2026-01-01T00:00:01.000000Z"));
    fake.say("commit", &[aborted(), aborted(), aborted(), done]);
    assert!(matches!(attempt(&store, &me).await.unwrap(), Attempt::Granted(_)));
    assert_eq!(fake.commits().len(), 4);
    fake.say("commit", &[aborted()]);
    let error = attempt(&store, &me).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "certainly not done: {error}");
    let commits = fake.commits().len() - 4;
    assert!((2..=16).contains(&commits), "tried {commits} times");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_not_stormed_and_its_end_is_noticed() {
    const REQUESTS: u32 = 7;
    let fake = Fake::start().await;
    let proxy = Proxy::to(fake.url.rsplit_once('=').unwrap().1.parse().unwrap()).await.unwrap();
    let url = format!("firestore://fake?timeout=1s&emulator={}", proxy.address());
    let store = Arc::new(FirestoreStore::connect(&url).await.unwrap());
    let look = || Arc::clone(&store).lookup(Key::new("job").unwrap());
    look().await.unwrap();
    proxy.down();
    look().await.unwrap_err();
    let (start, before) = (tokio::time::Instant::now(), proxy.traffic().refused);
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let store = Arc::clone(&store);
        callers.spawn(async move {
            // They ask again at once, which no engine does.
            while let Err(error) = Arc::clone(&store).lookup(Key::new("job").unwrap()).await {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
        });
    }
    while proxy.traffic().refused - before < REQUESTS.into() {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody asks any more");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pauses = (2..=REQUESTS).map(|n| Duration::from_millis(25 << n).min(Duration::from_secs(1)));
    let least = pauses.sum::<Duration>() / 2;
    assert!(start.elapsed() >= least, "{REQUESTS} requests in {:?}", start.elapsed());
    proxy.heal();
    let all = async { while callers.join_next().await.transpose().unwrap().is_some() {} };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("all are served again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_write_carries_a_precondition() {
    let fake = Fake::start().await;
    let (store, me) = (connect(&fake).await, secret());
    let times = ["00:01.000000Z", "00:20.000009Z", "00:21.000000Z"];
    let times = times.map(|clock| (200, committed(&format!("2026-01-01T00:{clock}"))));
    fake.say("commit", &times);
    attempt(&store, &me).await.unwrap();
    fake.say(
        "batchGet",
        &[(200, found(&me, "2026-01-01T00:00:01.000007Z", "2026-01-01T00:00:20Z"))],
    );
    assert!(matches!(extend(&store, &me).await.unwrap(), Extension::Extended(_)));
    Arc::clone(&store).release(key(), me.clone()).await.unwrap();
    let commits = fake.commits();
    let [grant, renewal, deletion] = commits.as_slice() else {
        panic!("three writes: {commits:?}")
    };
    assert!(grant.contains(r#""currentDocument":{"exists":false}"#), "{grant}");
    // As it was read, and as it was written last.
    for (write, version) in [(renewal, "00:01.000007Z"), (deletion, "00:20.000009Z")] {
        let only_if = format!(r#""currentDocument":{{"updateTime":"2026-01-01T00:{version}"}}"#);
        assert!(write.contains(&only_if), "{write}");
    }
    assert!(renewal.contains(r#""fence":{"integerValue":"1767225601000007"}"#), "{renewal}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_malformed_answer_is_ever_a_grant() {
    let fake = Fake::start().await;
    let (store, me) = (connect(&fake).await, secret());
    for answer in [
        "",
        "{}",
        "[]",
        "null",
        "{",
        "OK",
        r#"{"writeResults":[{}]}"#,
        r#"{"commitTime":5}"#,
        r#"{"commitTime":"yesterday"}"#,
        r#"{"writeResults":[{"updateTime":"2026-13-01T00:00:00Z"}]}"#,
    ] {
        fake.say("commit", &[(200, answer.to_owned())]);
        let error = attempt(&store, &me).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{answer}: {error}");
    }
    fake.say("commit", &[(409, failure("ALREADY_EXISTS"))]);
    let other = missing("2026-01-01T00:00:00Z").replace("k:job", "k:other");
    let deep = "[".repeat(100_000);
    for answer in ["", "{}", "[]", "[{}]", "null", &other, &deep, r#"[{"readTime":"x"}]"#] {
        fake.say("batchGet", &[(200, answer.to_owned())]);
        let error = attempt(&store, &me).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{answer:.40}: {error}");
    }
    let huge = format!(r#"["{}"]"#, "x".repeat(5 << 20));
    fake.say("batchGet", &[(200, huge)]);
    assert!(attempt(&store, &me).await.is_err(), "an answer without end is not read to its end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_say_what_is_known() {
    let fake = Fake::start().await;
    let (store, me) = (connect(&fake).await, secret());
    for (status, http, kind) in [
        ("UNAVAILABLE", 503, ErrorKind::Ambiguous),
        ("INTERNAL", 500, ErrorKind::Ambiguous),
        ("DEADLINE_EXCEEDED", 504, ErrorKind::Ambiguous),
        ("UNAUTHENTICATED", 401, ErrorKind::AuthFailed),
        ("PERMISSION_DENIED", 403, ErrorKind::AuthFailed),
        ("RESOURCE_EXHAUSTED", 429, ErrorKind::RateLimited),
    ] {
        fake.say("commit", &[(http, failure(status))]);
        let error = attempt(&store, &me).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_lock_is_taken_and_given_back_with_one_request_each() {
    let fake = Fake::start().await;
    let (store, me) = (connect(&fake).await, secret());
    fake.say("commit", &[(200, committed("2026-01-01T00:00:01Z"))]);
    let before = fake.asked.lock().unwrap().len();
    assert!(matches!(attempt(&store, &me).await.unwrap(), Attempt::Granted(_)));
    let released = Arc::clone(&store).release(key(), me.clone()).await.unwrap();
    assert_eq!(released, Release::Released);
    assert_eq!(fake.asked.lock().unwrap().len() - before, 2);
    // What is busy is only looked at.
    fake.say("batchGet", &[(200, found(&me, "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"))]);
    for attempts in 0..3 {
        let before = fake.asked.lock().unwrap().len();
        assert!(matches!(attempt(&store, &secret()).await.unwrap(), Attempt::Busy(_)));
        let asked = fake.asked.lock().unwrap().len() - before;
        assert_eq!(asked, if attempts == 0 { 2 } else { 1 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_over_when_its_document_went_was_not_released() {
    let fake = Fake::start().await;
    let (store, me) = (connect(&fake).await, secret());
    for (deleted, answer) in [("00:31.0", Release::Released), ("00:31.2", Release::NotHeld)] {
        let times =
            [committed("2026-01-01T00:00:01Z"), committed(&format!("2026-01-01T00:{deleted}Z"))];
        fake.say("commit", &times.map(|time| (200, time)));
        attempt(&store, &me).await.unwrap();
        assert_eq!(
            Arc::clone(&store).release(key(), me.clone()).await.unwrap(),
            answer,
            "{deleted}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_others_always_take_first_is_busy() {
    let fake = Fake::start().await;
    let store = connect(&fake).await;
    fake.say("commit", &[(409, failure("ALREADY_EXISTS"))]);
    assert!(matches!(attempt(&store, &secret()).await.unwrap(), Attempt::Busy(_)));
    assert!((2..=16).contains(&fake.commits().len()), "bounded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_changed_is_looked_at_before_it_is_given_back() {
    let fake = Fake::start().await;
    let (store, me, other) = (connect(&fake).await, secret(), secret());
    let refused = || (400, failure("FAILED_PRECONDITION"));
    let done = |clock: &str| (200, committed(&format!("2026-01-01T00:00:{clock}Z")));
    fake.say("commit", &[done("01"), refused(), done("09")]);
    attempt(&store, &me).await.unwrap();
    // Extended by another process that has the token.
    fake.say("batchGet", &[(200, found(&me, "2026-01-01T00:00:05Z", "2026-01-01T00:00:06Z"))]);
    assert_eq!(Arc::clone(&store).release(key(), me.clone()).await.unwrap(), Release::Released);
    // Taken by somebody else.
    fake.say("batchGet", &[(200, missing("2026-01-01T00:00:00Z"))]);
    fake.say("commit", &[done("11"), refused()]);
    attempt(&store, &me).await.unwrap();
    fake.say("batchGet", &[(200, found(&other, "2026-01-01T00:00:12Z", "2026-01-01T00:00:13Z"))]);
    assert_eq!(Arc::clone(&store).release(key(), me.clone()).await.unwrap(), Release::NotHeld);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_variable_of_googles_tools_leads_to_an_emulator_and_is_warned_of() {
    let fake = Fake::start().await;
    let address = fake.url.rsplit('=').next().unwrap();
    // Another process, because a variable is everybody's.
    let output = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "connects_by_the_variable", "--nocapture"])
        .env(EMULATOR, address)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["WARN", "FIRESTORE_EMULATOR_HOST is set", address, "found Unsafe"] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
}

#[tokio::test]
#[ignore = "started by the test before"]
async fn connects_by_the_variable() {
    if std::env::var_os(EMULATOR).is_none() {
        return;
    }
    tracing_subscriber::fmt().with_ansi(false).init();
    let store = FirestoreStore::connect("firestore://fake").await.unwrap();
    println!("found {:?}", Arc::new(store).probe().await.unwrap().level());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emulator_is_never_taken_for_firestore() {
    let fake = Fake::start().await;
    let found = connect(&fake).await.probe().await.unwrap();
    assert_eq!(found.level(), Level::Unsafe);
    assert!(found.to_string().contains("emulator"), "{found}");
}
