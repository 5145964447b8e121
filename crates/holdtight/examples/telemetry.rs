//! What locks tell an operator: `tracing` lines, `on_event` calls, and what Prometheus would
//! scrape.
//!
//! Run it with `cargo run -p holdtight --features metrics --example telemetry`.

use std::time::Duration;

use holdtight::{EventKind, LockError};
use metrics_exporter_prometheus::PrometheusBuilder;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A service would call `install()`, which also answers on port 9000; here we print what it
    // would answer.
    let scrape = PrometheusBuilder::new().install_recorder()?;
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .without_time()
        .with_writer(std::io::stdout)
        .init();

    println!("# the log");
    locks().await?;
    println!("# the scrape");
    println!("{}", scrape.render().trim());
    Ok(())
}

async fn locks() -> Result<(), LockError> {
    let (renewed, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let lock = holdtight::builder("memory:")
        .ttl(Duration::from_secs(3))
        .on_event(move |event| {
            if event.kind == EventKind::Renewed {
                let _ = renewed.send(());
            }
        })
        .connect()
        .await?;

    // Taken, found busy by another, renewed in the background, extended, given back.
    let handle = lock.acquire("report:7").reason("nightly report").await?;
    assert!(lock.try_acquire("report:7").await?.is_none());
    seen.recv().await;
    handle.extend(Duration::from_secs(30)).await?;
    handle.release().await?;

    // Waited for, and got when its holder let go.
    let handle = lock.acquire("report:8").await?;
    let waiting = lock.wait_for_lock("report:8", Duration::from_secs(30));
    let (next, released) = tokio::join!(waiting, handle.release());
    released?;
    next?.release().await?;

    // Taken away by force through the same object: the handle is told at once.
    let handle = lock.acquire("report:9").await?;
    lock.force_release("report:9", handle.fence()).await?;
    assert!(handle.extend(Duration::from_secs(30)).await.is_err());
    assert!(handle.release().await.is_err());
    lock.shutdown().await
}
