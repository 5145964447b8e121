//! Wake-ups: a release wakes one waiter, the first that still listens, and costs nothing when
//! nobody waits.

mod support;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Attempt, Backend, Intent, Release, Subscription, WakeUps};
use holdtight_testkit::servers::Redis;
use support::{
    PATIENCE, admin, attempt, busy, connect, granted, key, proxied, release, secret, until,
};

async fn hears(hint: &mut Subscription) -> bool {
    tokio::time::timeout(PATIENCE, hint.heard()).await.is_ok()
}

async fn is_silent(hint: &mut Subscription) -> bool {
    tokio::time::timeout(Duration::from_millis(100), hint.heard()).await.is_err()
}

on_redis! {
    async fn a_release_wakes_the_first_waiter_and_no_other(server: &Redis) {
        let (key, holder, me) = (key("k"), connect(&server.url()).await, secret());
        assert_eq!(holder.capabilities().wake_ups, WakeUps::Standing);
        granted(&holder, &key, &me).await;
        let mut waiters = Vec::new();
        for _ in 0..3 {
            let store = connect(&server.url()).await;
            let mut hint = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
            let secret = secret();
            busy(&store, &key, &secret, Intent::Queue).await;
            // Asking again does not cost a waiter its place.
            busy(&store, &key, &secret, Intent::Queue).await;
            assert!(is_silent(&mut hint).await);
            waiters.push((store, hint, secret));
        }
        release(&holder, &key, &me).await;
        for turn in 0..3 {
            let (store, hint, secret) = &mut waiters[turn];
            assert!(hears(hint).await, "waiter {turn} is next");
            let lease = attempt(store, &key, secret, Intent::Queue).await.unwrap();
            let Attempt::Granted(lease) = lease else { panic!("{lease:?}") };
            assert_eq!(lease.contended, Some(turn < 2));
            for (_, later, _) in &mut waiters[turn + 1..] {
                assert!(is_silent(later).await);
            }
            let (store, _, secret) = &waiters[turn];
            assert_eq!(release(store, &key, secret).await, Release::Released);
        }
    }
}

on_redis! {
    async fn a_waiter_whose_connection_is_gone_is_passed_over(server: &Redis) {
        let (key, holder, me) = (key("k"), connect(&server.url()).await, secret());
        granted(&holder, &key, &me).await;
        for _ in 0..5 {
            let gone = connect(&server.url()).await;
            busy(&gone, &key, &secret(), Intent::Queue).await;
        }
        let store = connect(&server.url()).await;
        let mut hint = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
        busy(&store, &key, &secret(), Intent::Queue).await;
        until("the server sees the connections close", async || {
            support::info(server, "pubsub_channels").await == 2
        }).await;
        release(&holder, &key, &me).await;
        assert!(hears(&mut hint).await);
    }
}

on_redis! {
    async fn a_woken_waiter_that_withdraws_passes_the_wake_up_on(server: &Redis) {
        let (key, holder, me) = (key("k"), connect(&server.url()).await, secret());
        granted(&holder, &key, &me).await;
        let (fickle, patient) = (connect(&server.url()).await, connect(&server.url()).await);
        let (first, second) = (secret(), secret());
        let mut fickle_hint = Arc::clone(&fickle).subscribe(key.clone()).await.unwrap();
        busy(&fickle, &key, &first, Intent::Queue).await;
        let mut hint = Arc::clone(&patient).subscribe(key.clone()).await.unwrap();
        busy(&patient, &key, &second, Intent::Queue).await;
        release(&holder, &key, &me).await;
        assert!(hears(&mut fickle_hint).await && is_silent(&mut hint).await);
        assert_eq!(release(&fickle, &key, &first).await, Release::NotHeld);
        assert!(hears(&mut hint).await);
    }
}

on_redis! {
    async fn whoever_comes_before_the_woken_one_knows_of_the_others_and_wakes_them(server: &Redis) {
        let stores = [connect(&server.url()).await, connect(&server.url()).await, connect(&server.url()).await];
        // Alone, and in a crowd whose attempts go out together.
        for others in [0, 60] {
            let (key, me) = (key(&format!("k{others}")), secret());
            granted(&stores[0], &key, &me).await;
            let mut hints = Vec::new();
            for store in &stores[..2] {
                hints.push(Arc::clone(store).subscribe(key.clone()).await.unwrap());
                busy(store, &key, &secret(), Intent::Queue).await;
            }
            release(&stores[0], &key, &me).await;
            assert!(hears(&mut hints[0]).await, "it is woken, and dies");
            let crowd: Vec<_> = (0..others).map(|n| {
                let (store, key) = (Arc::clone(&stores[2]), support::key(&format!("{key}:{n}")));
                tokio::spawn(async move { attempt(&store, &key, &secret(), Intent::Queue).await.unwrap() })
            }).collect();
            let (me, mut taken) = (secret(), None);
            until("the right of way of the dead one is over", async || {
                if let Attempt::Granted(lease) = attempt(&stores[2], &key, &me, Intent::Queue).await.unwrap() {
                    taken = Some(lease);
                }
                taken.is_some()
            }).await;
            assert_eq!(taken.unwrap().contended, Some(true));
            for other in crowd {
                let Attempt::Granted(lease) = other.await.unwrap() else { panic!("it was free") };
                assert_eq!(lease.contended, Some(false));
            }
            release(&stores[2], &key, &me).await;
            assert!(hears(&mut hints[1]).await);
        }
    }
}

on_redis! {
    async fn whoever_was_woken_is_served_before_those_who_stand_nearer(server: &Redis) {
        let (near, far) = (connect(&server.url()).await, connect(&server.url()).await);
        // Where the machine stands still, the right of way is over before the others ask: then once
        // more.
        for round in 0.. {
            let (key, waiter, rival, me) = (key(&format!("k{round}")), secret(), secret(), secret());
            granted(&near, &key, &me).await;
            let mut hint = Arc::clone(&far).subscribe(key.clone()).await.unwrap();
            busy(&far, &key, &waiter, Intent::Queue).await;
            let released = std::time::Instant::now();
            release(&near, &key, &me).await;
            let answer = attempt(&near, &key, &rival, Intent::Queue).await.unwrap();
            if released.elapsed() > Duration::from_millis(250) {
                assert!(round < 20, "this machine is too slow to tell");
                continue;
            }
            let Attempt::Busy(busy) = answer else { panic!("it barged in: {answer:?}") };
            assert!(busy.retry_after <= Some(Duration::from_millis(300)), "{busy:?}");
            assert!(Arc::clone(&near).lookup(key.clone()).await.unwrap().is_none(), "nobody has it yet");
            assert!(hears(&mut hint).await);
            // Somebody who does not stand in line is not kept back; the woken one keeps its place
            // all the same.
            let passer = secret();
            granted(&near, &key, &passer).await;
            assert!(matches!(attempt(&far, &key, &waiter, Intent::Queue).await, Ok(Attempt::Busy(_))));
            release(&near, &key, &passer).await;
            assert!(hears(&mut hint).await, "it is first again");
            let next = attempt(&far, &key, &waiter, Intent::Queue).await.unwrap();
            assert!(matches!(next, Attempt::Granted(_)), "{next:?}");
            // The rival kept its place, and is next.
            release(&far, &key, &waiter).await;
            let next = attempt(&near, &key, &rival, Intent::Queue).await.unwrap();
            assert!(matches!(next, Attempt::Granted(_)), "{next:?}");
            release(&near, &key, &rival).await;
            assert_eq!(support::count(server, "DBSIZE").await, 1, "only the counter is left");
            return;
        }
    }
}

on_redis! {
    async fn a_forced_release_wakes_as_well(server: &Redis) {
        let (key, store, me) = (key("k"), connect(&server.url()).await, secret());
        let lease = granted(&store, &key, &me).await;
        let mut hint = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
        busy(&store, &key, &secret(), Intent::Queue).await;
        let wrong = holdtight_core::Fence::new(lease.fence.get() + 1);
        let refused = Arc::clone(&store).force_release(key.clone(), wrong).await.unwrap();
        assert_eq!(refused, Release::NotHeld);
        assert!(is_silent(&mut hint).await);
        let freed = Arc::clone(&store).force_release(key.clone(), lease.fence).await.unwrap();
        assert_eq!(freed, Release::Released);
        assert!(hears(&mut hint).await);
    }
}

on_redis! {
    async fn a_gap_in_the_connection_wakes_everybody_and_later_releases_are_heard(server: &Redis) {
        let proxy = proxied(server).await;
        let store = connect(&format!("redis://{}", proxy.address())).await;
        let (holder, me) = (connect(&server.url()).await, secret());
        let mut hints = Vec::new();
        for name in ["a", "b"] {
            granted(&holder, &key(name), &me).await;
            hints.push(Arc::clone(&store).subscribe(key(name)).await.unwrap());
            busy(&store, &key(name), &me_too(), Intent::Queue).await;
        }
        proxy.cut();
        for hint in &mut hints {
            assert!(hears(hint).await, "a cut may have swallowed a message");
        }
        // The next attempt opens a connection and listens on it before it is used.
        busy(&store, &key("a"), &me_too(), Intent::Queue).await;
        for hint in &mut hints {
            let _ = tokio::time::timeout(Duration::from_millis(50), hint.heard()).await;
        }
        release(&holder, &key("a"), &me).await;
        assert!(hears(&mut hints[0]).await);
    }
}

fn me_too() -> holdtight_core::Secret {
    secret()
}

on_redis! {
    async fn without_pubsub_nobody_queues_and_everything_else_works(server: &Redis) {
        let store = connect(&format!("{}?pubsub=off", server.url())).await;
        assert_eq!(store.capabilities().wake_ups, WakeUps::None);
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        busy(&store, &key, &secret(), Intent::Queue).await;
        assert_eq!(support::info(server, "pubsub_channels").await, 0);
        assert_eq!(support::count(server, "EXISTS \"holdtight:\\x01wait:k\"").await, 0);
        assert!(!admin(server, "GET holdtight:k").await.ends_with("\n\r\n"));
        assert_eq!(release(&store, &key, &me).await, Release::Released);
    }
}
