//! Locks in a program without async: threads, calls that wait, handles that let go when they are
//! dropped.

use std::thread;
use std::time::Duration;

use holdtight::LockError;
use holdtight::blocking;

fn main() -> Result<(), LockError> {
    let lock = blocking::connect(holdtight::builder("memory:").wait(Duration::from_secs(30)))?;
    let workers: Vec<_> = (1..=3)
        .map(|worker| {
            let lock = lock.clone();
            thread::spawn(move || {
                lock.with_lock("printer", |held| {
                    // Nobody can stop a thread from outside: ask before every page.
                    for page in 1..=2 {
                        held.check()?;
                        println!("worker {worker}, page {page}");
                    }
                    Ok(())
                })?
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no worker panics")?;
    }
    lock.shutdown()
}
