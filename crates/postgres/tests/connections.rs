//! Connections that are lost or shared: requests that arrive late, and one caller's trouble that
//! stays its own.
#![cfg(target_os = "linux")]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use holdtight_core::{AcquireRequest, Attempt, Backend as _, ErrorKind, Release};
use holdtight_postgres::migrate;
use holdtight_testkit::{Flow, Proxy};
use support::{
    LONG, PATIENCE, attempt, available, eventually, fresh, holder, key, open, refused, release,
    secret, take,
};

/// What a caller may do between losing sight of a request and its late arrival.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Released,
    TakenAndReleased,
    TakenByAnother,
}

#[tokio::test]
async fn a_request_that_arrives_after_its_secret_was_given_back_is_not_granted() {
    if !available() {
        return;
    }
    let server = holdtight_testkit::servers::Postgres::shared().await;
    for options in ["", "&pooler=transaction"] {
        for meanwhile in
            [Meanwhile::Released, Meanwhile::TakenAndReleased, Meanwhile::TakenByAnother]
        {
            // New connections go past the slow network; what was sent before is still in it.
            let slow =
                Proxy::to(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()))).await.unwrap();
            let url = format!(
                "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?schema=late&connections=1&timeout=4\
                 &application_name=late{options}",
                slow.port(),
                server.port()
            );
            migrate(&url).await.unwrap();
            let store = open(&url).await;
            let (late, owner) = (key(&format!("{meanwhile:?}{options}")), secret());
            slow.requests(Flow::Hold);
            slow.refuse(true);
            refused(attempt(&store, &late, &owner, LONG).await, ErrorKind::Ambiguous);
            match meanwhile {
                Meanwhile::Released => {
                    assert_eq!(release(&store, &late, &owner).await.unwrap(), Release::NotHeld);
                }
                Meanwhile::TakenAndReleased => {
                    assert!(matches!(
                        attempt(&store, &late, &owner, LONG).await,
                        Ok(Attempt::Granted(_))
                    ));
                    assert_eq!(release(&store, &late, &owner).await.unwrap(), Release::Released);
                }
                Meanwhile::TakenByAnother => {
                    assert_eq!(release(&store, &late, &owner).await.unwrap(), Release::NotHeld);
                    let (other, _) = take(&store, &late, LONG).await;
                    assert_eq!(release(&store, &late, &other).await.unwrap(), Release::Released);
                }
            }
            // The sweep must not forget what is barred.
            store.sweep(Duration::ZERO).await.unwrap();
            slow.requests(Flow::Pass);
            eventually("the late request was answered and its session is over", async || {
                let sessions =
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'late'";
                (server.sql(sessions).as_deref() == Ok("1")).then_some(())
            })
            .await;
            assert_eq!(holder(&store, &late).await, None, "{meanwhile:?} {options}");
            // Everybody else may have it, with a fence that goes on.
            let (other, first) = take(&store, &late, LONG).await;
            release(&store, &late, &other).await.unwrap();
            assert!(take(&store, &late, LONG).await.1.fence > first.fence);
            drop(store);
            eventually("the sessions end", async || {
                let sessions =
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'late'";
                (server.sql(sessions).as_deref() == Ok("0")).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn one_locked_row_fails_its_own_caller_and_not_those_who_share_the_connection() {
    if !available() {
        return;
    }
    let (server, url) = fresh("shared_lane").await;
    let store = open(&format!("{url}&connections=1&timeout=20")).await;
    let busy = key("busy");
    let (owner, _) = take(&store, &busy, LONG).await;
    release(&store, &busy, &owner).await.unwrap();
    let locked = {
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || {
            let lock = "SELECT FROM shared_lane.locks WHERE key = 'busy' FOR UPDATE";
            server.sql(&format!("BEGIN; {lock}; SELECT pg_sleep(30); COMMIT"))
        })
    };
    eventually("the row is locked", async || {
        let free = "SELECT count(*) FROM (SELECT FROM shared_lane.locks WHERE key = 'busy' FOR UPDATE SKIP LOCKED) s";
        (server.sql(free).as_deref() == Ok("0")).then_some(())
    })
    .await;
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (own, free) = (Arc::clone(&store), key(&format!("k{n}")));
        callers.spawn(async move { take(&own, &free, LONG).await });
        if n == 10 {
            let (own, busy) = (Arc::clone(&store), busy.clone());
            callers.spawn(async move {
                let answer = attempt(&own, &busy, &secret(), LONG).await;
                let text = refused(answer, ErrorKind::Unavailable);
                assert!(text.contains("55P03"), "{text}");
                take(&own, &key("after"), LONG).await
            });
        }
    }
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'BEGIN; SELECT FROM shared_lane%'";
    assert_eq!(server.sql(end).as_deref(), Ok("t"), "the row was locked all the time");
    let _ = locked.await.unwrap();
    take(&store, &busy, LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_that_nobody_polls_hold_up_no_connection() {
    if !available() {
        return;
    }
    for (schema, options) in [("forgotten", ""), ("forgotten_pooled", "&pooler=transaction")] {
        let (_server, url) = fresh(schema).await;
        let store = open(&format!("{url}&connections=1{options}")).await;
        // All that they ask is sent, and answered, on the one connection there is.
        let mut forgotten = Vec::new();
        for n in 0..40 {
            let wanted = AcquireRequest::new(key(&format!("k{n}")), secret(), LONG);
            let mut call = Arc::clone(&store).acquire(wanted);
            let pending =
                std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending()));
            assert!(pending.await);
            forgotten.push(call);
        }
        let others = async {
            for n in 0..40 {
                let other = key(&format!("other{n}"));
                let (owner, _) = take(&store, &other, LONG).await;
                assert_eq!(release(&store, &other, &owner).await.unwrap(), Release::Released);
            }
        };
        tokio::time::timeout(PATIENCE, others).await.expect("others are served");
        drop(forgotten);
    }
}
