//! Election, once per period, fenced writes: the patterns on top of a lock, under faults. Virtual
//! time.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{Fault, SECOND, Step, builder, eventually, scripted};
use holdtight_core::{ErrorKind, FencedRegister, Loss};

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_next_one_takes_over_when_it_steps_down() {
    let (lock, store, clock) = scripted();
    let other = builder(&store, &clock).build().unwrap();
    let first = lock.election("post").reason("one").campaign().await.unwrap();
    let rival =
        tokio::spawn(async move { other.election("post").reason("two").campaign().await.unwrap() });
    let election = lock.election("post");
    assert_eq!(election.leader().await.unwrap().unwrap().owner.reason.as_deref(), Some("one"));
    tokio::time::sleep(120 * SECOND).await;
    assert!(first.is_leader(), "a leader is renewed");
    let fence = first.fence();
    first.step_down().await.unwrap();
    let second = rival.await.unwrap();
    assert!(second.fence() > fence && second.is_leader());
    let seen = election.next_leader(Some(fence)).await.unwrap();
    assert_eq!((seen.fence, seen.owner.reason.as_deref()), (Some(second.fence()), Some("two")));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_the_next_one_starts() {
    let (lock, store, clock) = scripted();
    let other = builder(&store, &clock).build().unwrap();
    let cut_off = lock.election("post").ttl(10 * SECOND).campaign().await.unwrap();
    store.always(Step::Extend, Fault::Refuse(ErrorKind::Unavailable));
    let rival = tokio::spawn(async move { other.election("post").campaign().await.unwrap() });
    assert_eq!(cut_off.lost().await, Loss::Expired);
    assert!(!rival.is_finished(), "two leaders");
    assert!(!cut_off.is_leader());
    assert!(rival.await.unwrap().fence() > cut_off.fence());
}

/// Much longer than a single call tolerates an outage.
#[tokio::test(start_paused = true)]
async fn a_candidate_goes_on_campaigning_when_the_store_was_away() {
    let (lock, store, _) = scripted();
    store.always(Step::Acquire, Fault::Refuse(ErrorKind::Unavailable));
    let leading = tokio::spawn(async move { lock.election("post").lead(async |_| 7).await });
    tokio::time::sleep(600 * SECOND).await;
    assert!(!leading.is_finished(), "{:?}", leading.await);
    store.always(Step::Acquire, Fault::None);
    assert_eq!(leading.await.unwrap().unwrap(), 7);
}

/// However long the store takes to answer: one attempt is one attempt.
#[tokio::test(start_paused = true)]
async fn a_free_post_is_had_at_the_first_attempt() {
    let (lock, store, _) = scripted();
    store.always(Step::Acquire, Fault::SlowReply(SECOND / 2));
    let election = lock.election("post");
    assert!(election.try_campaign().await.unwrap().is_some());
    eventually("free", async || !store.is_held("post").await).await;
    assert!(election.campaign_within(Duration::from_millis(1)).await.unwrap().is_some());
}

/// Many nodes, leaders deposed by force and by outages: the work of two leaders never overlaps, and
/// the work goes on.
#[tokio::test(start_paused = true)]
async fn leaders_come_and_go_and_never_two_at_once() {
    let (lock, store, clock) = scripted();
    let (leading, terms) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let nodes: Vec<_> = (0..5)
        .map(|_| {
            let node = builder(&store, &clock).ttl(3 * SECOND).build().unwrap();
            let (leading, terms) = (Arc::clone(&leading), Arc::clone(&terms));
            tokio::spawn(async move {
                node.election("post")
                    .lead(|held| {
                        let (leading, terms) = (Arc::clone(&leading), Arc::clone(&terms));
                        async move {
                            let _alone = Alone::new(leading);
                            terms.fetch_add(1, Ordering::SeqCst);
                            // Works until it is stopped.
                            loop {
                                assert!(held.is_held(), "work goes on although the post is lost");
                                tokio::time::sleep(Duration::from_millis(10)).await;
                            }
                        }
                    })
                    .await
            })
        })
        .collect();
    for round in 0..40 {
        eventually("somebody leads", async || leading.load(Ordering::SeqCst) == 1).await;
        if round % 2 == 0 {
            let term = terms.load(Ordering::SeqCst);
            store.always(Step::Extend, Fault::LoseRequest);
            eventually("another term begins", async || terms.load(Ordering::SeqCst) > term).await;
            store.always(Step::Extend, Fault::None);
        } else {
            tokio::time::sleep(SECOND).await;
        }
    }
    assert!(terms.load(Ordering::SeqCst) >= 20);
    nodes.iter().for_each(tokio::task::JoinHandle::abort);
    drop(lock);
}

/// Fails if two are inside at once.
struct Alone(Arc<AtomicU32>);

impl Alone {
    fn new(inside: Arc<AtomicU32>) -> Self {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two leaders at work");
        Self(inside)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn once_per_period_means_once_per_period() {
    let (lock, store, clock) = scripted();
    let other = builder(&store, &clock).build().unwrap();
    let minute = 60 * SECOND;
    let mut runs = Vec::new();
    let started = tokio::time::Instant::now();
    while started.elapsed() < 10 * minute {
        for node in [&lock, &other] {
            let ran = node
                .once_per("report", minute, async |_| tokio::time::sleep(5 * SECOND).await)
                .await
                .unwrap();
            if ran.is_some() {
                runs.push(started.elapsed());
            }
        }
        tokio::time::sleep(SECOND).await;
    }
    assert!((9..=11).contains(&runs.len()), "{runs:?}");
    assert!(runs.windows(2).all(|pair| pair[1] >= pair[0] + minute), "{runs:?}");
    // A period shorter than the lease of other locks.
    let turn = async || lock.once_per("short", 5 * SECOND, async |_| ()).await.unwrap().is_some();
    assert!(turn().await && !turn().await);
    tokio::time::sleep(6 * SECOND).await;
    assert!(turn().await, "the period is over");
    // Work longer than its period: the next one may start at once.
    lock.once_per("long", SECOND, async |_| tokio::time::sleep(10 * SECOND).await)
        .await
        .unwrap()
        .unwrap();
    assert!(!store.is_held("long").await);
    assert_eq!(
        lock.once_per("x", Duration::ZERO, async |_| ()).await.unwrap_err().kind(),
        ErrorKind::InvalidConfig
    );
}

/// The holder is paused past its lease and wakes up in the middle of its work: its late write is
/// refused.
#[tokio::test(start_paused = true)]
async fn a_late_write_of_a_paused_holder_is_refused() {
    let (lock, _, clock) = scripted();
    let balance = FencedRegister::new(100);
    let paused = lock.acquire("account").auto_renew(false).await.unwrap();
    let read = balance.read();
    clock.jump(3600 * SECOND);
    let next = lock.acquire("account").await.unwrap();
    balance.write(next.fence(), |balance| *balance -= 30).unwrap();
    let refused = balance.write(paused.fence(), |balance| *balance = read - 50).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotHeld);
    balance.write(next.fence(), |balance| *balance += 1).unwrap();
    assert_eq!((balance.read(), balance.fence()), (71, Some(next.fence())));
}
