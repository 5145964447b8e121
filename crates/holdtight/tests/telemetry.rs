//! What docs/operations.md shows is what happens; the dashboard asks for what exists; no secret is
//! told to anybody.

mod built;

use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdtight::store::Backend;
use holdtight::{Builder, EventKind, LockError, LockToken, MemoryStore, Operation, StoreUrl};
use holdtight_testkit::{Chaos, Fault, Method};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the example prints: the log and the scrape.
fn example() -> (String, String) {
    let program = built::example("telemetry");
    let output = Command::new(&program)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (log, scrape) = text.split_once("# the scrape\n").unwrap();
    (log.strip_prefix("# the log\n").unwrap().to_owned(), scrape.to_owned())
}

/// Numbers, and what else differs from run to run, made equal.
fn normal(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        // Who runs the tests is nobody's business.
        let line = match (line.find("held by "), line.find("; tried")) {
            (Some(from), Some(to)) => format!("{}held by SOMEBODY{}", &line[..from], &line[to..]),
            _ => line.to_owned(),
        };
        let mut out = String::new();
        for c in line.chars() {
            match c {
                '0'..='9' | '.' if out.ends_with('N') => {}
                '0'..='9' => out.push('N'),
                _ => out.push(c),
            }
        }
        // Small numbers are written with an exponent.
        lines.push(out.replace("Ne-N", "N"));
    }
    lines
}

/// The block of docs/operations.md after the comment `<!-- NAME -->`.
fn documented(name: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let (_, rest) = page.split_once(&format!("<!-- {name} -->\n\n```text\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// The names and labels of a scrape, sorted: the exporter keeps no order.
fn series(scrape: &str) -> Vec<String> {
    let mut lines = normal(scrape);
    lines.sort();
    lines
}

#[test]
fn the_log_and_the_scrape_in_the_documents_are_what_really_happens() {
    let (log, scrape) = example();
    assert_eq!(normal(&log), normal(&documented("log")), "the log is now:\n{log}");
    assert_eq!(series(&scrape), series(&documented("scrape")), "the scrape is now:\n{scrape}");
}

#[test]
fn the_dashboard_asks_for_nothing_that_is_not_there() {
    let text = std::fs::read_to_string(root().join("docs/grafana-dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (_, scrape) = example();
    // Errors of the store do not happen to the memory store; their name is documented beside the
    // others.
    let page = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            for word in query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                if !word.starts_with("holdtight_") {
                    continue;
                }
                asked += 1;
                let known = scrape.contains(word)
                    || word == "holdtight_store_errors_total" && page.contains(word);
                assert!(known, "{}: nothing is called {word}", panel["title"]);
            }
        }
    }
    assert!(asked >= 6, "the dashboard shows only {asked} series");
}

/// Everything that is told, in one place.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Told {
    fn note(&self, what: &dyn Debug) {
        self.clone().write_all(format!("{what:?}\n{what:#?}\n").as_bytes()).unwrap();
    }

    fn failed(&self, error: &LockError) {
        self.note(error);
        self.clone().write_all(format!("{error}\n").as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// A life with everything in it; returns the secrets that were used.
async fn scenario(store: Arc<dyn Backend>, told: &Told) -> Vec<LockToken> {
    let sink = told.clone();
    let builder = Builder::shared(store)
        .ttl(Duration::from_secs(6))
        .on_event(move |event| sink.note(event))
        .reveal_keys(|_| true);
    told.note(&builder);
    let lock = builder.build().unwrap();
    told.note(&lock);
    let mut tokens = Vec::new();

    told.note(&lock.acquire("a"));
    let handle = lock.acquire("a").await.unwrap();
    tokens.push(handle.token());
    told.note(&handle);
    told.note(&handle.held());
    told.note(&handle.info());
    told.note(&handle.token());
    told.failed(&lock.wait_for_lock("a", Duration::from_millis(30)).await.unwrap_err());
    assert!(lock.try_acquire("a").await.unwrap().is_none());
    told.note(&lock.lookup("a").await.unwrap());
    told.note(&lock.list("").await.unwrap());
    // Renewed at least once, whatever the machine is doing.
    let before = told.text().matches("Renewed").count();
    let started = std::time::Instant::now();
    while told.text().matches("Renewed").count() == before {
        assert!(started.elapsed() < Duration::from_secs(60), "never renewed:\n{}", told.text());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    handle.extend(Duration::from_secs(60)).await.unwrap();
    let token = handle.detach().await.unwrap();
    told.note(&lock.owns(&token).await.unwrap());
    let resumed = lock.resume(token.clone()).await.unwrap();
    resumed.release().await.unwrap();
    told.failed(&lock.resume(token.clone()).await.unwrap_err());
    told.failed(&lock.release_token(&token).await.unwrap_err());

    let both = lock.acquire_all(["b", "c"]).await.unwrap();
    tokens.extend(both.handles().iter().map(holdtight::LockHandle::token));
    told.note(&both);
    both.release().await.unwrap();

    let deposed = lock.acquire("d").await.unwrap();
    tokens.push(deposed.token());
    lock.force_release("d", deposed.fence()).await.unwrap();
    told.failed(&deposed.extend(Duration::from_secs(60)).await.unwrap_err());
    told.failed(&deposed.release().await.unwrap_err());

    let election = lock.election("post").reason("node 7");
    told.note(&election);
    let leader = election.campaign().await.unwrap();
    told.note(&leader);
    told.note(&election.leader().await.unwrap());
    leader.step_down().await.unwrap();

    let turn = lock.turn("period", Duration::from_secs(60)).await.unwrap().unwrap();
    told.note(&turn);
    turn.done().await.unwrap();
    told.note(&lock.once_per("period", Duration::from_secs(60), async |_| ()).await.unwrap());

    let token = lock.acquire("e").await.unwrap().detach().await.unwrap();
    tokens.push(token.clone());
    told.note(&lock.extend_token(&token, Duration::from_secs(60)).await.unwrap());
    lock.release_token(&token).await.unwrap();
    told.failed(&lock.extend_token(&token, Duration::from_secs(60)).await.unwrap_err());

    // A panic shows what was looked at.
    let doomed = lock.acquire("f").await.unwrap();
    tokens.push(doomed.token());
    let failing = async move { assert!(doomed.fence().get() == 0, "it is {doomed:?}") };
    told.note(&tokio::spawn(failing).await.unwrap_err());
    let damaged = token.expose().replace("ht1_", "ht1_9");
    told.failed(&damaged.parse::<LockToken>().unwrap_err());
    lock.shutdown().await.unwrap();
    told.failed(&lock.acquire("a").await.unwrap_err());
    tokens
}

/// The same for code without async, as far as it differs.
fn blocking_scenario(told: &Told) -> Vec<LockToken> {
    use holdtight::blocking;
    let sink = told.clone();
    let builder = holdtight::builder("memory:")
        .on_event(move |event| {
            sink.note(event);
            assert!(event.kind != EventKind::Extended, "a sink that panics is logged");
        })
        .reveal_keys(|_| true);
    told.note(&builder);
    let lock = blocking::connect(builder).unwrap();
    told.note(&lock);
    let mut tokens = Vec::new();
    told.note(&lock.acquire("a"));
    told.note(&lock.try_acquire("a"));
    told.note(&lock.acquire_all(["a", "b"]));
    let handle = lock.acquire("a").get().unwrap();
    tokens.push(handle.token());
    told.note(&handle);
    told.note(handle.held());
    told.note(&handle.info());
    handle.extend(Duration::from_secs(60)).unwrap();
    told.failed(&lock.acquire("a").wait(Duration::ZERO).get().unwrap_err());
    told.failed(&lock.acquire_all(["a", "b"]).wait(Duration::ZERO).get().unwrap_err());
    let token = handle.detach().unwrap();
    lock.release_token(&token).unwrap();
    told.failed(&lock.release_token(&token).unwrap_err());
    let set = lock.acquire_all(["a", "b"]).get().unwrap();
    tokens.extend(set.handles().iter().map(blocking::LockHandle::token));
    told.note(&set);
    set.release().unwrap();
    let election = lock.election("post");
    told.note(&election);
    told.note(&election.campaign().unwrap());
    told.note(&lock.once_per("period", Duration::from_secs(60), Clone::clone).unwrap());
    let doomed = lock.acquire("f").get().unwrap();
    tokens.push(doomed.token());
    let failing = move || assert!(doomed.fence().get() == 0, "it is {doomed:?}");
    told.note(&std::thread::spawn(failing).join().unwrap_err().downcast::<String>());
    lock.shutdown().unwrap();
    tokens
}

/// A store that fails in every way, so that what is said of failures is heard as well.
async fn misfortunes(told: &Told) -> Vec<LockToken> {
    let chaos = Chaos::around(Arc::new(MemoryStore::new()));
    let sink = told.clone();
    let lock = Builder::shared(Arc::clone(&chaos) as Arc<dyn Backend>)
        .step_timeout(Duration::from_millis(50))
        .on_event(move |event| sink.note(event))
        .build()
        .unwrap();
    let mut tokens = Vec::new();
    let faults = [
        Fault::LostReply,
        Fault::LostRequest,
        Fault::SlowReply(Duration::from_millis(200)),
        Fault::Error(holdtight::ErrorKind::Internal),
    ];
    for fault in faults {
        chaos.next(Method::Acquire, 1, fault);
        match lock.try_acquire("a").await {
            Ok(handle) => told.note(&handle),
            Err(error) => told.failed(&error),
        }
        let handle = lock.acquire("b").wait(Duration::from_secs(20)).await.unwrap();
        tokens.push(handle.token());
        chaos.next(Method::Extend, 2, fault);
        told.note(&handle.extend(Duration::from_secs(60)).await);
        told.note(&lock.owns(&handle.token()).await);
        chaos.next(Method::ReleaseNow, 1, fault);
        chaos.next(Method::Release, 1, fault);
        told.note(&handle.release().await);
        chaos.next(Method::AcquireMany, 1, fault);
        told.note(&lock.acquire_all(["c", "d"]).wait(Duration::ZERO).await);
    }
    told.note(&chaos.history());
    chaos.heal();
    told.note(&lock.shutdown().await);
    tokens
}

fn recorder() -> &'static PrometheusHandle {
    static SCRAPE: std::sync::OnceLock<PrometheusHandle> = std::sync::OnceLock::new();
    SCRAPE.get_or_init(|| PrometheusBuilder::new().install_recorder().unwrap())
}

#[tokio::test]
async fn no_log_error_debug_event_panic_or_metric_of_any_face_tells_a_secret() {
    let scrape = recorder();
    let told = Told::default();
    let writer = told.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .init();
    let hook = told.clone();
    std::panic::set_hook(Box::new(move |panic| {
        hook.clone().write_all(format!("PANIC {panic}\n").as_bytes()).unwrap();
    }));

    let mut tokens = scenario(Arc::new(MemoryStore::new()), &told).await;
    #[cfg(feature = "file")]
    {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file:{}", dir.path().join("locks").display());
        let store = holdtight::open(&StoreUrl::new(url).unwrap()).await.unwrap();
        told.note(&store);
        tokens.extend(scenario(store, &told).await);
    }
    tokens.extend(misfortunes(&told).await);
    let other = told.clone();
    tokens.extend(tokio::task::spawn_blocking(move || blocking_scenario(&other)).await.unwrap());
    drop(std::panic::take_hook());
    told.clone().write_all(scrape.render().as_bytes()).unwrap();

    let text = told.text();
    // The net is fine enough to catch what there is.
    for sign in [
        "acquired",
        "released",
        "TRACE",
        "DEBUG",
        "WARN",
        "ERROR",
        "PANIC",
        "key_hash",
        "callback panicked",
        "a step failed",
        "holdtight_lost_total",
        "holdtight_store_errors_total",
    ] {
        assert!(text.contains(sign), "nothing was told about {sign}");
    }
    assert!(tokens.len() >= 20, "{} secrets were looked for", tokens.len());
    for token in tokens {
        let secret = token.secret().expose();
        assert!(secret.len() >= 16);
        if let Some(at) = text.find(secret) {
            let line = text[..at].lines().last().unwrap_or_default();
            panic!("a secret was told after: {line}");
        }
    }
}

#[tokio::test]
async fn events_show_a_hash_unless_the_predicate_lets_the_key_out() {
    let told = Told::default();
    let sink = told.clone();
    let lock = holdtight::builder("memory:")
        .reveal_keys(|event| {
            assert!(event.kind != EventKind::AcquireFailed, "a predicate that panics hides");
            event.operation() == Operation::Release
        })
        .on_event(move |event| {
            sink.note(&(event, event.operation(), event.is_ok(), event.reason()));
        })
        .connect()
        .await
        .unwrap();
    let handle = lock.acquire("customer:ann").await.unwrap();
    assert!(lock.try_acquire("customer:ann").await.unwrap().is_none());
    assert!(lock.is_locked("customer:ann").await.unwrap());
    assert!(lock.lookup("customer:bob").await.unwrap().is_none());
    let before = told.text();
    assert!(!before.contains("customer"), "{before}");
    for sign in ["\"locked\"", "AcquireFailed", "Checked", "LookedUp", "IsLocked"] {
        assert!(before.contains(sign), "{sign} is missing in {before}");
    }
    handle.release().await.unwrap();
    assert!(told.text()[before.len()..].contains("customer:ann"), "allowed for releases");
}
