//! Leader election: three processes, one leader. The leader is killed, another one takes over.
//!
//! `lead` campaigns, runs the work while this process leads, and stops it *before* another one can
//! begin: work is never done by a leader that was deposed. The files of the store see at once that
//! the killed process is gone; over a network it would take until its lease ends.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Far beyond what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    match (args.next(), args.next()) {
        (Some(url), Some(name)) => candidate(&url, &name).await,
        _ => tokio::task::spawn_blocking(|| contest().map_err(|error| error.to_string()))
            .await?
            .map_err(Into::into),
    }
}

/// One process that wants to lead.
async fn candidate(url: &str, name: &str) -> Outcome {
    let lock = holdtight::connect(url).await?;
    lock.election("scheduler")
        .reason(name)
        .lead(|held| async move {
            println!("{name} {}", held.fence());
            // The work of a leader; dropped as soon as the post is lost.
            std::future::pending::<()>().await;
        })
        .await?;
    Ok(())
}

/// Starts three, kills whoever leads, until the last one leads.
fn contest() -> Outcome {
    let dir = tempfile::tempdir()?;
    let url = format!("file:{}", dir.path().join("locks").display());
    let (news, hear) = mpsc::channel();
    let mut nodes = Vec::new();
    for name in ["node-1", "node-2", "node-3"] {
        let mut child = Command::new(std::env::current_exe()?)
            .args([&url, name])
            .stdout(Stdio::piped())
            .spawn()?;
        let (output, news) = (child.stdout.take().ok_or("no pipe")?, news.clone());
        nodes.push((name, Node(child)));
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if news.send(line).is_err() {
                    return;
                }
            }
        });
    }

    let mut last = 0;
    while !nodes.is_empty() {
        let line = hear.recv_timeout(PATIENCE)?;
        let (leader, fence) = line.split_once(' ').ok_or("what is that?")?;
        let fence: u64 = fence.parse()?;
        assert!(fence > last, "every leader has a higher fence than all before");
        last = fence;
        println!("{leader} leads; killing it");
        let place = nodes.iter().position(|(name, _)| *name == leader);
        // Dropping it kills it, without a chance to clean up.
        drop(nodes.remove(place.ok_or("a leader that was killed before")?));
    }
    println!("three leaders, one after the other");
    Ok(())
}

/// A process that is killed when this goes away, also if something fails.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
