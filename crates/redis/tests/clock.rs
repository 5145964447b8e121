//! The server's wall clock steps. Leases follow it, because Redis counts them by it; fences only ever rise.
#![cfg(target_os = "linux")]

mod support;
#[path = "support/wheel.rs"]
mod wheel;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use holdtight_core::{Extension, Intent, Release};
use holdtight_testkit::servers::Program;
use support::{LONG, busy, connect, extend, granted, key, lookup, release, secret};
use wheel::Server;

/// A server whose wall clock the test moves.
struct Shifted {
    server: Server,
    offset: PathBuf,
}

impl Shifted {
    /// `None`, said aloud, where there is no Redis or no C compiler.
    fn start(name: &str) -> Option<Self> {
        if support::redis_is_missing() {
            return None;
        }
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (library, offset) =
            (place.join(format!("{name}.so")), place.join(format!("{name}.offset")));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/wall_clock.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .status();
        if !built.is_ok_and(|built| built.success()) {
            let missing = "a C compiler is needed to move a server's clock; run: apt-get install gcc libc6-dev";
            assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "{missing}");
            eprintln!("skipped: {missing}");
            return None;
        }
        std::fs::write(&offset, 0i64.to_ne_bytes()).unwrap();
        let environment: [(&str, &Path); 2] =
            [("LD_PRELOAD", &library), ("WALL_CLOCK_OFFSET", &offset)];
        let server = Server::start_in(&Program::REDIS.find().unwrap(), &environment);
        Some(Self { server, offset })
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.server.port)
    }

    /// Sets the clock so many seconds ahead of the true time.
    fn ahead(&self, seconds: i64) {
        use std::os::unix::fs::FileExt as _;
        let file = std::fs::File::options().write(true).open(&self.offset).unwrap();
        file.write_all_at(&(seconds * 1_000_000_000).to_ne_bytes(), 0).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_ends_leases_early_and_their_holders_are_told() {
    let Some(shifted) = Shifted::start("forward") else { return };
    let store = connect(&shifted.url()).await;
    let (key, me, next) = (key("k"), secret(), secret());
    let before = granted(&store, &key, &me).await.fence;
    shifted.ahead(120);
    support::until("the lease is over by the new clock", async || {
        lookup(&store, &key).await.is_none()
    })
    .await;
    let after = granted(&store, &key, &next).await.fence;
    assert!(after > before);
    assert_eq!(extend(&store, &key, &me, LONG).await.unwrap(), Extension::NotHeld);
    assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
    assert_eq!(release(&store, &key, &next).await, Release::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_repeats_no_fence_and_frees_no_lock() {
    let Some(shifted) = Shifted::start("back") else { return };
    let store = connect(&shifted.url()).await;
    let (key, me) = (key("k"), secret());
    let mut last = granted(&store, &key, &me).await.fence;
    for seconds in [-120, -240, 0, -3600, 3600, -1] {
        shifted.ahead(seconds);
        let (other, somebody) = (support::key("other"), secret());
        let fence = granted(&store, &other, &somebody).await.fence;
        assert!(fence > last, "{fence} after {last} with the clock at {seconds} s");
        last = fence;
        release(&store, &other, &somebody).await;
    }
    shifted.ahead(-120);
    // A lease lives on through a step back, longer than asked.
    let (key, me) = (support::key("fresh"), secret());
    let lease = granted(&store, &key, &me).await;
    assert!(lease.fence > last);
    shifted.ahead(-240);
    let shown = busy(&store, &key, &secret(), Intent::Try).await.holder.unwrap();
    assert!(shown.remaining.unwrap() > Duration::from_secs(100) && shown.age.unwrap() < LONG);
    let extended = extend(&store, &key, &me, LONG).await.unwrap();
    assert!(matches!(extended, Extension::Extended(now) if now.fence == lease.fence));
}
