//! A lock and the data it protects in one database: a write of a holder that was paused cannot
//! land.

mod support;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::AcquireRequest;
use holdtight_core::{Attempt, Backend as _, ErrorKind, Extension, Release, TransferRequest};
use support::{
    LONG, attempt, available, eventually, extend, fresh, key, lookup, open, refused, release,
    secret, take,
};

#[tokio::test]
async fn a_paused_holder_cannot_write_once_somebody_else_was_granted_the_lock() {
    if !available() {
        return;
    }
    let (server, url) = fresh("paused").await;
    server.sql("CREATE TABLE paused.account (id int, balance int); INSERT INTO paused.account VALUES (7, 100)").unwrap();
    let store = open(&url).await;
    let account = key("account:7's \\ lock");
    let spend = |fence, amount: i32| {
        let held = store.fenced(&account, fence).unwrap();
        let update = format!(
            "UPDATE paused.account SET balance = balance - {amount} WHERE id = 7 AND {held} RETURNING id"
        );
        server.sql(&update).unwrap() == "7"
    };

    let (_, first) = take(&store, &account, Duration::from_millis(200)).await;
    assert!(spend(first.fence, 10), "the holder may write");
    // The holder is paused here, for longer than its lease.
    eventually("the lease ends", async || {
        lookup(&store, &account).await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(spend(first.fence, 1), "nobody came in between: the write harms nobody");
    let (owner, second) = take(&store, &account, LONG).await;
    assert!(!spend(first.fence, 50), "the paused holder wakes up too late");
    assert!(spend(second.fence, 20));

    // Handing over and releasing end the right to write as well.
    let next = AcquireRequest::new(account.clone(), secret(), LONG);
    let last = next.secret.clone();
    Arc::clone(&store).transfer(TransferRequest::new(owner, next)).await.unwrap();
    assert!(!spend(second.fence, 50));
    let third = lookup(&store, &account).await.unwrap().unwrap().fence.unwrap();
    assert!(spend(third, 5));
    assert_eq!(release(&store, &account, &last).await.unwrap(), Release::Released);
    assert!(!spend(third, 50));
    assert_eq!(server.sql("SELECT balance FROM paused.account").unwrap(), "64");
}

#[tokio::test]
async fn a_fenced_transaction_keeps_the_next_grant_waiting_and_renewals_going() {
    if !available() {
        return;
    }
    let (server, url) = fresh("open_write").await;
    server.sql("CREATE TABLE open_write.log (line text)").unwrap();
    let store = open(&url).await;
    let job = key("job");
    let (owner, lease) = take(&store, &job, LONG).await;
    // The writer stays in its transaction for as long as this is held.
    let (gate, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    gate.batch_execute("SELECT pg_advisory_lock(7001)").await.unwrap();
    let held = store.fenced(&job, lease.fence).unwrap();
    let writer = {
        let (server, held) = (Arc::clone(&server), held.clone());
        tokio::task::spawn_blocking(move || {
            server.sql(&format!(
                "BEGIN; INSERT INTO open_write.log SELECT 'first' WHERE {held}; \
                 SELECT pg_advisory_xact_lock(7001); COMMIT"
            ))
        })
    };
    eventually("the write is under way", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE '%open_write%'";
        (server.sql(waiting).as_deref() == Ok("1")).then_some(())
    })
    .await;
    // Renewal is not in the way of the write, and the write not in the way of renewal.
    assert!(matches!(extend(&store, &job, &owner, LONG * 2).await, Ok(Extension::Extended(_))));
    assert_eq!(release(&store, &job, &owner).await.unwrap(), Release::Released);
    // Free, but the old holder's write is not over: nobody is let in beside it.
    let text = refused(attempt(&store, &job, &secret(), LONG).await, ErrorKind::Unavailable);
    assert!(text.contains("55P03"), "{text}");
    assert_eq!(
        server.sql("SELECT count(*) FROM open_write.log").unwrap(),
        "0",
        "not committed yet"
    );
    gate.batch_execute("SELECT pg_advisory_unlock(7001)").await.unwrap();
    let me = secret();
    eventually("the write is over and the next grant comes", async || {
        matches!(attempt(&store, &job, &me, LONG).await, Ok(Attempt::Granted(_))).then_some(())
    })
    .await;
    assert_eq!(
        server.sql("SELECT line FROM open_write.log").unwrap(),
        "first",
        "it came before the grant"
    );
    writer.await.unwrap().unwrap();
    assert_eq!(server.sql(&format!("SELECT {held}")).unwrap(), "f");
}
