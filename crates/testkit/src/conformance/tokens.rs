//! The engine over this store, and locks as plain data: a token is good for one holder, wherever
//! its copies went.

use std::time::Duration;

use holdtight_core::{ErrorKind, LockToken};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] = cases![if Transfer;
    a_token_is_resumed_by_another_client,
    a_token_makes_one_holder_however_often_it_is_resumed,
    a_handle_whose_token_is_resumed_has_lost_its_lock,
    a_foreign_token_opens_nothing,
    a_cooldown_is_as_long_as_asked_for,
];

async fn a_token_is_resumed_by_another_client(stage: &Stage) {
    let (lock, other) = (stage.engine(&stage.store), stage.engine(&stage.open().await));
    let handle = lock.acquire("engine").await.unwrap();
    let fence = handle.fence();
    let text = handle.detach().await.unwrap().expose();
    assert!(lock.try_acquire("engine").await.unwrap().is_none(), "a detached lock is held");
    let token: LockToken = text.parse().unwrap();
    assert!(other.owns(&token).await.unwrap());
    let resumed = other.resume(token.clone()).await.unwrap();
    assert!(resumed.is_held());
    assert!(resumed.fence() > fence, "what the first holder does late must be refused");
    let shown = stage.lookup(&stage.key("engine")).await.expect("held");
    stage.must_show(&shown, resumed.fence());
    assert!(!lock.owns(&token).await.unwrap(), "resuming uses a token up");
    resumed.release().await.unwrap();
    let late = other.resume(token).await.expect_err("it was released");
    assert_eq!(late.kind(), ErrorKind::NotHeld, "{late}");
    let next = lock.acquire("engine").await.unwrap();
    assert!(next.fence() > fence);
    next.release().await.unwrap();
}

async fn a_token_makes_one_holder_however_often_it_is_resumed(stage: &Stage) {
    let token = stage.engine(&stage.store).acquire("engine").await.unwrap();
    let token = token.detach().await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for store in stage.open_many(4).await {
        let lock = stage.engine(&store);
        for _ in 0..2 {
            let (lock, token) = (lock.clone(), token.clone());
            calls.spawn(async move { lock.resume(token).await });
        }
    }
    let mut holders = Vec::new();
    while let Some(call) = calls.join_next().await {
        match call.unwrap() {
            Ok(handle) => holders.push(handle),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}"),
        }
    }
    assert_eq!(holders.len(), 1, "holders of one token");
    assert!(holders[0].is_held());
    holders.pop().unwrap().release().await.unwrap();
}

async fn a_handle_whose_token_is_resumed_has_lost_its_lock(stage: &Stage) {
    let (lock, other) = (stage.engine(&stage.store), stage.engine(&stage.open().await));
    let ttl = stage.brief();
    let handle = lock.acquire("engine").ttl(ttl).await.unwrap();
    let resumed = lock.resume_for(handle.token(), ttl).await.unwrap();
    assert!(!handle.is_held() && resumed.is_held(), "through one object: at once");
    drop(handle);
    let elsewhere = other.resume(resumed.token()).await.unwrap();
    resumed.lost().await;
    drop(resumed);
    lock.shutdown().await.unwrap();
    assert!(elsewhere.is_held(), "the first holder gave back what was not its own");
    elsewhere.release().await.unwrap();
}

async fn a_foreign_token_opens_nothing(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    let handle = lock.acquire("engine").await.unwrap();
    let foreign = LockToken::new(key, secret());
    assert!(!lock.owns(&foreign).await.unwrap());
    let refused = lock.resume(foreign).await.expect_err("it is not ours");
    assert_eq!(refused.kind(), ErrorKind::NotHeld, "{refused}");
    assert!(handle.is_held());
    handle.release().await.unwrap();
}

async fn a_cooldown_is_as_long_as_asked_for(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    let cooldown = stage.short().max(Duration::from_millis(50));
    let handle = lock.acquire("engine").ttl(stage.long()).await.unwrap();
    handle.keep_for(cooldown).await.unwrap();
    stage.refused(&key).await;
    // The lease that it had would last for minutes.
    stage.expire(&key, cooldown).await;
    stage.must_be_free(&key).await;
}
