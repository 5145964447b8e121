//! A rate limit: at most one newsletter per hour, however many processes try.
//!
//! A lock that is released when the work is done limits how many work *at once*, not how *often*.
//! `once_per` leaves the lock to run out instead, counted from the start of the work by the store's
//! clock.

use std::time::Duration;

use holdtight::LockError;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let lock = holdtight::connect("memory:").await?;
    let mut sent = 0;
    for _ in 0..10 {
        match lock.once_per("newsletter", HOUR, async |_| "sent").await? {
            Some(_) => sent += 1,
            None => println!("not now: one was sent within the last hour"),
        }
    }
    assert_eq!(sent, 1);

    // A budget of three calls per hour: as many locks as calls, and whoever finds one free may
    // call.
    let mut calls = 0;
    for _ in 0..10 {
        for slot in 0..3 {
            let called = lock.once_per(format!("api:{slot}"), HOUR, async |_| ()).await?;
            if called.is_some() {
                calls += 1;
                break;
            }
        }
    }
    assert_eq!(calls, 3);
    println!("sent {sent} newsletter and made {calls} calls");
    lock.shutdown().await
}
