//! What a store says when the network fails: done, not done, or unknown, and always something
//! (contract 8 and 9).

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, ErrorKind, ExtendBy, Key, LockError, Release, Secret,
};

use super::case::{Case, cases};
use super::stage::{Stage, attempt, secret};
use crate::{Flow, Proxy};

pub(super) const CASES: &[Case] = cases![if Proxy;
    single_bytes_are_put_together,
    a_slow_network_is_waited_for,
    a_grant_whose_reply_was_lost_is_not_called_undone,
    a_grant_cut_off_on_its_way_is_not_called_undone,
    a_release_whose_reply_was_lost_is_not_called_undone,
    a_release_cut_off_on_its_way_is_not_called_somebody_elses,
    an_extension_whose_reply_was_lost_is_not_called_undone,
    a_server_that_is_gone_is_an_error_and_its_return_is_noticed,
    every_call_into_a_black_hole_ends,
    exclusion_survives_a_network_that_breaks_all_the_time,
];

/// How long any single call may take, whatever the network does.
const CALL_LIMIT: Duration = Duration::from_secs(60);

fn proxy(stage: &Stage) -> &Proxy {
    stage.proxy.as_ref().expect("a trial that needs a proxy")
}

/// The answer, which must come.
async fn ends<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(CALL_LIMIT, call).await.expect("every call must end in bounded time")
}

/// The store is connected and works.
async fn warm_up(stage: &Stage) {
    let key = stage.key("network:warm");
    let (owner, _) = stage.taken(&key, stage.long()).await;
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
}

/// After the network came back, the store does too, without being opened anew.
async fn works_again(stage: &Stage) {
    proxy(stage).heal();
    let key = stage.key("network:again");
    let owner = secret();
    stage
        .until("the store works again", async || {
            matches!(ends(stage.attempt(&key, &owner, stage.long())).await, Ok(Attempt::Granted(_)))
        })
        .await;
    stage
        .until("it releases again", async || {
            ends(Arc::clone(&stage.store).release(key.clone(), owner.clone())).await.is_ok()
        })
        .await;
}

/// Takes `key` back to free, however the last call about it ended.
async fn settle(stage: &Stage, key: &Key, owner: &Secret) {
    stage
        .until("a lost call is settled", async || {
            let released = ends(Arc::clone(&stage.store).release(key.clone(), owner.clone())).await;
            released.is_ok() && stage.lookup(key).await.is_none()
        })
        .await;
    stage.must_be_free(key).await;
}

fn must_be_unknown(error: &LockError, what: &str) {
    assert_eq!(
        error.kind(),
        ErrorKind::Ambiguous,
        "{what} was done, but its error says that it was not, or what nobody knows: {error}"
    );
}

async fn single_bytes_are_put_together(stage: &Stage) {
    proxy(stage).requests(Flow::Trickle);
    proxy(stage).replies(Flow::Trickle);
    let key = stage.key("network");
    for _ in 0..3 {
        let (owner, lease) = stage.taken(&key, stage.long()).await;
        stage.must_be_held(&key, &owner, lease.fence).await;
        assert_eq!(stage.release(&key, &owner).await, Release::Released);
    }
    stage.must_be_free(&key).await;
}

async fn a_slow_network_is_waited_for(stage: &Stage) {
    warm_up(stage).await;
    proxy(stage).replies(Flow::Delay(Duration::from_millis(150)));
    let key = stage.key("network");
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    stage.must_be_held(&key, &owner, lease.fence).await;
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
}

async fn a_grant_whose_reply_was_lost_is_not_called_undone(stage: &Stage) {
    warm_up(stage).await;
    let (key, owner) = (stage.key("network"), secret());
    proxy(stage).replies(Flow::Drop);
    let lost = ends(stage.attempt(&key, &owner, stage.long())).await;
    let lost = lost.expect_err("no reply came, so nothing can be known");
    works_again(stage).await;
    if stage.lookup(&key).await.is_some() {
        must_be_unknown(&lost, "the grant");
    }
    // The same secret finds out.
    let lease = stage.granted(&key, &owner, stage.long()).await;
    stage.must_be_held(&key, &owner, lease.fence).await;
    settle(stage, &key, &owner).await;
}

async fn a_grant_cut_off_on_its_way_is_not_called_undone(stage: &Stage) {
    for round in 0..5 {
        warm_up(stage).await;
        let (key, owner) = (stage.key(&format!("network:{round}")), secret());
        let before = proxy(stage).traffic();
        proxy(stage).replies(Flow::Hold);
        let call = {
            let (store, key, owner, ttl) =
                (Arc::clone(&stage.store), key.clone(), owner.clone(), stage.long());
            tokio::spawn(async move { attempt(&store, &key, &owner, ttl).await })
        };
        // The server has answered; the answer is in the proxy.
        stage
            .until("the server answers", async || {
                call.is_finished() || proxy(stage).traffic().received > before.received
            })
            .await;
        proxy(stage).cut();
        proxy(stage).heal();
        let answer = ends(call).await.unwrap();
        works_again(stage).await;
        match answer {
            // A store that asked again and found itself the holder knows what happened.
            Ok(Attempt::Granted(lease)) => stage.must_be_held(&key, &owner, lease.fence).await,
            Ok(other) => panic!("nobody else wants {key:?}: {other:?}"),
            Err(lost) if stage.lookup(&key).await.is_some() => must_be_unknown(&lost, "the grant"),
            Err(_) => {}
        }
        settle(stage, &key, &owner).await;
    }
}

async fn a_release_whose_reply_was_lost_is_not_called_undone(stage: &Stage) {
    let key = stage.key("network");
    let (owner, _) = stage.taken(&key, stage.long()).await;
    proxy(stage).replies(Flow::Drop);
    let lost = ends(Arc::clone(&stage.store).release(key.clone(), owner.clone())).await;
    let lost = lost.expect_err("no reply came, so nothing can be known");
    works_again(stage).await;
    if stage.lookup(&key).await.is_none() {
        must_be_unknown(&lost, "the release");
    }
    settle(stage, &key, &owner).await;
}

/// A store that asks again by itself hears "not held" of the second release: its holder would be
/// told of a loss.
async fn a_release_cut_off_on_its_way_is_not_called_somebody_elses(stage: &Stage) {
    for round in 0..5 {
        let key = stage.key(&format!("network:{round}"));
        let (owner, _) = stage.taken(&key, stage.long()).await;
        let before = proxy(stage).traffic();
        proxy(stage).replies(Flow::Hold);
        let call = tokio::spawn(Arc::clone(&stage.store).release(key.clone(), owner.clone()));
        stage
            .until("the server answers", async || {
                call.is_finished() || proxy(stage).traffic().received > before.received
            })
            .await;
        proxy(stage).cut();
        proxy(stage).heal();
        let answer = ends(call).await.unwrap();
        works_again(stage).await;
        match answer {
            Ok(Release::Released) => assert!(stage.lookup(&key).await.is_none(), "it was released"),
            Ok(_) => panic!("the release of our own lock was answered with \"not held\""),
            Err(lost) if stage.lookup(&key).await.is_none() => {
                must_be_unknown(&lost, "the release");
            }
            Err(_) => {}
        }
        settle(stage, &key, &owner).await;
    }
}

async fn an_extension_whose_reply_was_lost_is_not_called_undone(stage: &Stage) {
    let (key, ttl) = (stage.key("network"), stage.long() / 4);
    let (owner, lease) = stage.taken(&key, ttl).await;
    proxy(stage).replies(Flow::Drop);
    let request = holdtight_core::ExtendRequest::new(
        key.clone(),
        owner.clone(),
        ExtendBy::AtLeast(stage.long()),
    );
    let lost = match ends(Arc::clone(&stage.store).extend(vec![request])).await {
        Err(lost) => lost,
        Ok(mut answers) => answers.remove(0).expect_err("no reply came, so nothing can be known"),
    };
    works_again(stage).await;
    let left = stage.extended(&key, &owner, ExtendBy::AtLeast(Duration::ZERO)).await;
    assert_eq!(left.fence, lease.fence);
    if left.ttl > ttl + stage.capabilities.ttl_slack {
        must_be_unknown(&lost, "the extension");
    }
    settle(stage, &key, &owner).await;
}

async fn a_server_that_is_gone_is_an_error_and_its_return_is_noticed(stage: &Stage) {
    warm_up(stage).await;
    let (key, owner) = (stage.key("network"), secret());
    for _ in 0..2 {
        proxy(stage).down();
        let error = ends(stage.attempt(&key, &owner, stage.long())).await;
        let error = error.expect_err("the server is gone");
        assert!(error.kind().is_transient(), "it may come back: {error}");
        assert!(ends(Arc::clone(&stage.store).lookup(key.clone())).await.is_err());
        works_again(stage).await;
        settle(stage, &key, &owner).await;
    }
}

async fn every_call_into_a_black_hole_ends(stage: &Stage) {
    let key = stage.key("network");
    let (owner, _) = stage.taken(&key, stage.long()).await;
    proxy(stage).black_hole();
    let store = || Arc::clone(&stage.store);
    let request = || AcquireRequest::new(stage.key("network:2"), secret(), stage.long());
    let lease = || {
        holdtight_core::ExtendRequest::new(
            key.clone(),
            owner.clone(),
            ExtendBy::AtLeast(stage.long()),
        )
    };
    // At the same time: a store that answers each after its timeout would take too long one by one.
    let (acquired, extended, released, found, listed, probed, subscribed) = tokio::join!(
        ends(store().acquire(request())),
        ends(store().extend(vec![lease()])),
        ends(store().release(stage.key("network:3"), secret())),
        ends(store().lookup(key.clone())),
        ends(store().list(String::new(), 10)),
        ends(store().probe()),
        ends(store().subscribe(key.clone())),
    );
    assert!(acquired.is_err() && released.is_err() && found.is_err() && listed.is_err());
    assert!(extended.is_err() || extended.is_ok_and(|answers| answers.iter().all(Result::is_err)));
    // These two may have nothing to ask.
    drop((probed, subscribed));
    works_again(stage).await;
    settle(stage, &key, &owner).await;
}

async fn exclusion_survives_a_network_that_breaks_all_the_time(stage: &Stage) {
    let key = stage.key("network");
    let held = Arc::new(Mutex::new(HashSet::new()));
    let granted = Arc::new(Mutex::new(Vec::new()));
    let mut crowd = tokio::task::JoinSet::new();
    for client in stage.open_many(3).await {
        for _ in 0..2 {
            let (client, key, ttl) = (Arc::clone(&client), key.clone(), stage.long());
            let (held, granted) = (Arc::clone(&held), Arc::clone(&granted));
            crowd.spawn(async move {
                for _ in 0..15 {
                    turn(&client, &key, ttl, &held, &granted).await;
                }
            });
        }
    }
    let mut cuts = 0;
    while !crowd.is_empty() {
        tokio::select! {
            task = crowd.join_next() => { task.map(Result::unwrap); }
            () = tokio::time::sleep(Duration::from_millis(fastrand::u64(20..80))) => {
                proxy(stage).cut();
                cuts += 1;
            }
        }
        if cuts == 40 {
            // Enough harm done: whoever is left may finish.
            while let Some(task) = crowd.join_next().await {
                task.unwrap();
            }
        }
    }
    let granted = std::mem::take(&mut *granted.lock().unwrap());
    assert!(granted.is_sorted_by(|one, next| one < next), "fences must rise: {granted:?}");
    stage.until("the key is free in the end", async || stage.lookup(&key).await.is_none()).await;
}

/// One turn of one task: takes the lock, works, and gives it back, asking again whenever an answer
/// is lost.
async fn turn(
    client: &Arc<dyn Backend>,
    key: &Key,
    ttl: Duration,
    held: &Mutex<HashSet<Key>>,
    granted: &Mutex<Vec<holdtight_core::Fence>>,
) {
    let me = secret();
    loop {
        match ends(attempt(client, key, &me, ttl)).await {
            Ok(Attempt::Granted(lease)) => {
                granted.lock().unwrap().push(lease.fence);
                break;
            }
            Ok(_) => tokio::time::sleep(Duration::from_millis(fastrand::u64(1..10))).await,
            Err(error) => {
                assert!(error.kind().is_transient(), "a cut connection is no reason for {error}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    assert!(held.lock().unwrap().insert(key.clone()), "two owners of {key:?}");
    tokio::task::yield_now().await;
    held.lock().unwrap().remove(key);
    while ends(Arc::clone(client).release(key.clone(), me.clone())).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
