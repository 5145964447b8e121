//! `wait_aof`: what counts only when it is on the server's disk. With Valkey, where the installed
//! Redis is too old.

#[path = "support/wheel.rs"]
mod wheel;

mod support;

use holdtight_core::{ErrorKind, Extension, Intent, Release};
use support::{LONG, attempt, connect, extend, granted, key, release, secret};
use wheel::{Server, VALKEY_9};

fn admin(server: &Server, words: &[&str]) {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port)).unwrap();
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).exec(&mut client.get_connection().unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_on_disk_does_not_count() {
    let program = match VALKEY_9.server() {
        Ok(program) => program,
        Err(missing) => {
            assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "{missing}");
            eprintln!("skipped: {missing}");
            return;
        }
    };
    let server = Server::start(&program);
    for line in [["appendfsync", "always"], ["appendonly", "yes"]] {
        admin(&server, &["CONFIG", "SET", line[0], line[1]]);
    }
    let url = format!("redis://127.0.0.1:{}?wait_aof=1&timeout=3s", server.port);
    let (store, me) = (connect(&url).await, secret());
    let (key, other) = (key("k"), key("other"));
    granted(&store, &key, &me).await;
    assert!(matches!(extend(&store, &key, &me, 2 * LONG).await, Ok(Extension::Extended(_))));
    // From here on nothing is written out before the system likes to.
    admin(&server, &["CONFIG", "SET", "appendfsync", "no"]);
    let error = attempt(&store, &other, &me, Intent::Try).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert!(error.to_string().contains("disk"), "{error}");
    let error = extend(&store, &key, &me, 3 * LONG).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert_eq!(release(&store, &other, &me).await, Release::Released);
    admin(&server, &["CONFIG", "SET", "appendfsync", "always"]);
    assert!(matches!(extend(&store, &key, &me, LONG).await, Ok(Extension::Extended(_))));
    assert_eq!(release(&store, &key, &me).await, Release::Released);
}
