//! Handing a lock to another process: the web server takes it, a worker process does the work under
//! it.
//!
//! `detach` lets the lock live by its lease and gives the right to it as a token; `resume` takes it
//! up. A token is a secret: pass it by a pipe or a queue, never by a command line, which everybody
//! on the machine can read.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use holdtight::{ErrorKind, LockToken};

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(url) => worker(&url).await,
        None => server().await,
    }
}

async fn server() -> Outcome {
    let dir = tempfile::tempdir()?;
    let url = format!("file:{}", dir.path().join("locks").display());
    let lock = holdtight::connect(&url).await?;
    let handle = lock.acquire("invoice:7").await?;
    println!("server: took the lock");
    let fence = handle.fence();
    let token = handle.detach().await?;
    assert!(lock.owns(&token).await?);

    let mut worker =
        Command::new(std::env::current_exe()?).arg(&url).stdin(Stdio::piped()).spawn()?;
    // Written and closed: the worker reads to the end.
    worker.stdin.take().ok_or("no pipe")?.write_all(token.expose().as_bytes())?;
    let status = tokio::task::spawn_blocking(move || worker.wait()).await??;
    assert!(status.success());

    // The worker gave it back: the token opens nothing any more.
    let error = lock.release_token(&token).await.expect_err("it was released");
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    assert!(lock.acquire("invoice:7").await?.fence() > fence);
    println!("server: the lock is free again");
    Ok(())
}

async fn worker(url: &str) -> Outcome {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let token: LockToken = text.parse()?;
    let lock = holdtight::connect(url).await?;
    let handle = lock.resume(token).await?;
    println!("worker: has the lock, and keeps it while it works");
    assert!(lock.try_acquire("invoice:7").await?.is_none());
    handle.release().await?;
    Ok(())
}
