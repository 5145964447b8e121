//! The engine over this store while connections fall silent, break, or lead nowhere, and for
//! whoever is far away.
//!
//! Clients of these trials reach the fixture's proxy through others, so that one client has trouble
//! and the rest has none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Intent, Key, LockError, LockHandle, Loss, Release,
    RetryPolicy, Secret,
};
use tokio::net::TcpListener;

use super::case::{Case, cases};
use super::stage::{Stage, secret};
use crate::{Flow, Proxy};

pub(super) const CASES: &[Case] = cases![if Proxy, Processes;
    short_leases_outlive_connections_that_fall_silent,
    a_lease_that_is_gone_costs_no_other_of_its_batch,
    a_server_that_is_gone_is_not_stormed,
];

pub(super) const WAITING_CASES: &[Case] = cases![if Proxy, Processes, WakeUps;
    a_waiter_hears_again_after_its_connections_broke,
    a_waiter_hears_again_after_its_connections_fell_silent,
    a_far_waiter_is_served_beside_those_who_stand_near,
];

/// More connections in a second than any client needs to notice that a server is back, however many
/// wait there.
const KNOCKS_A_SECOND: u64 = 20;

/// As many as wait in a busy program.
const WAITERS: usize = 60;

/// How far away a far waiter is, one way: as far as another continent's coast.
const FAR: Duration = Duration::from_millis(25);

/// The fixture's own proxy, behind those of a trial.
fn server(stage: &Stage) -> SocketAddr {
    stage.proxy.as_ref().expect("a trial that needs a proxy").address()
}

/// A way to the server on which connections can fall silent, while those that are opened later
/// work.
struct Way {
    silent: Proxy,
    open: Proxy,
    server: SocketAddr,
}

impl Way {
    async fn to(server: SocketAddr) -> Self {
        let silent = Proxy::to(server).await.unwrap();
        let open = Proxy::to(silent.address()).await.unwrap();
        Self { silent, open, server }
    }

    /// A firewall forgot the connections, or the machine that they lead to was replaced: nobody is
    /// told.
    fn fall_silent(&self) {
        self.silent.black_hole();
        self.open.redirect(self.server);
    }
}

async fn short_leases_outlive_connections_that_fall_silent(stage: &Stage) {
    let way = Way::to(server(stage)).await;
    let lock = stage.engine(&stage.open_through(&way.open).await);
    let ttl = Duration::from_secs(5).clamp(stage.capabilities.min_ttl, stage.capabilities.max_ttl);
    let mut handles = Vec::new();
    for n in 0..20 {
        handles.push(lock.acquire(format!("outage:{n}")).ttl(ttl).await.unwrap());
    }
    // Whatever a store opens for renewals is open once they have been renewed.
    let mut left: Vec<_> = handles.iter().map(|handle| (handle.remaining(), false)).collect();
    stage
        .until("all are renewed", async || {
            for (handle, (left, renewed)) in handles.iter().zip(&mut left) {
                let now = handle.remaining();
                (*renewed, *left) = (*renewed || now > *left, now);
            }
            left.iter().all(|(_, renewed)| *renewed)
        })
        .await;
    way.fall_silent();
    // Until every lease that was not renewed is over.
    let end = tokio::time::Instant::now() + ttl * 2;
    while tokio::time::Instant::now() < end {
        let lost = handles.iter().filter(|handle| !handle.is_held()).count();
        assert_eq!(lost, 0, "of {} locks were lost with a connection", handles.len());
        tokio::time::sleep(ttl / 20).await;
    }
    for handle in handles {
        handle.release().await.unwrap();
    }
}

async fn a_lease_that_is_gone_costs_no_other_of_its_batch(stage: &Stage) {
    let way = Proxy::to(server(stage)).await.unwrap();
    let lock = stage.engine(&stage.open_through(&way).await);
    let ttl = stage.brief() * 2;
    let mut handles = Vec::new();
    for n in 0..10 {
        handles.push(lock.acquire(format!("outage:{n}")).ttl(ttl).await.unwrap());
    }
    // One is taken away, and the connection breaks in which the others would be told so.
    let gone = handles.remove(4);
    assert_eq!(stage.release(&gone.key(), gone.token().secret()).await, Release::Released);
    let (_next, _) = stage.taken(&gone.key(), stage.long()).await;
    way.cut();
    let loss = tokio::time::timeout(stage.patience + ttl, gone.lost()).await;
    assert_ne!(loss.expect("a loss is reported"), Loss::Expired, "the next renewal says so");
    let end = tokio::time::Instant::now() + ttl * 2;
    while tokio::time::Instant::now() < end {
        assert!(handles.iter().all(LockHandle::is_held), "another was lost with it");
        tokio::time::sleep(ttl / 20).await;
    }
    for handle in handles {
        handle.release().await.unwrap();
    }
}

/// Lets everybody in and serves nobody, as what stands in front of a server that is gone.
async fn nobody_home() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let door = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    (address, door)
}

async fn a_server_that_is_gone_is_not_stormed(stage: &Stage) {
    let way = Proxy::to(server(stage)).await.unwrap();
    let lock = stage.engine(&stage.open_through(&way).await);
    let (held, wait) = (lock.acquire("outage:held").await.unwrap(), Duration::from_secs(4));
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..WAITERS {
        let name = format!("outage:{n}");
        stage.taken(&stage.key(&name), stage.long()).await;
        let waiting = lock.acquire(name).wait(wait).retry(RetryPolicy::default());
        waiters.spawn(async move { waiting.await.map(drop) });
    }
    let (nowhere, door) = nobody_home().await;
    way.redirect(nowhere);
    way.cut();
    let before = way.traffic().connections;
    while let Some(waiter) = waiters.join_next().await {
        waiter.unwrap().expect_err("nobody grants it");
    }
    let knocks = way.traffic().connections - before;
    assert!(knocks <= KNOCKS_A_SECOND * wait.as_secs(), "{knocks} connections in {wait:?}");
    way.redirect(server(stage));
    stage.until("it works again", async || lock.acquire("outage:again").await.is_ok()).await;
    stage.until("it is released", async || !lock.is_locked("outage:again").await.unwrap()).await;
    held.release().await.unwrap();
    door.abort();
}

/// Asks as a waiter does.
async fn ask(
    stage: &Stage,
    store: &Arc<dyn Backend>,
    key: &Key,
    me: &Secret,
) -> Result<Attempt, LockError> {
    let request = AcquireRequest::new(key.clone(), me.clone(), stage.long()).intent(Intent::Queue);
    Arc::clone(store).acquire(request).await
}

async fn a_waiter_hears_again_after_its_connections_broke(stage: &Stage) {
    let way = Way::to(server(stage)).await;
    hears_again(stage, &way, || way.open.cut()).await;
}

async fn a_waiter_hears_again_after_its_connections_fell_silent(stage: &Stage) {
    let way = Way::to(server(stage)).await;
    hears_again(stage, &way, || way.fall_silent()).await;
}

async fn hears_again(stage: &Stage, way: &Way, trouble: impl Fn()) {
    let (key, store) = (stage.key("outage"), stage.open_through(&way.open).await);
    let (mut owner, _) = stage.taken(&key, stage.long()).await;
    let mut bell = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
    let mut me = secret();
    // Once before the trouble, when all that a store opens for its waiters is open. A bell that
    // rings because something may have been missed says nothing about the next release: so several
    // after it.
    for round in 0..5 {
        let can_ask = async || matches!(ask(stage, &store, &key, &me).await, Ok(Attempt::Busy(_)));
        stage.until("it can ask", can_ask).await;
        if round == 1 {
            trouble();
            stage.until("it can ask again", can_ask).await;
        }
        assert_eq!(stage.release(&key, &owner).await, Release::Released);
        let heard = tokio::time::timeout(stage.patience, bell.heard()).await;
        assert!(heard.is_ok(), "release {round} was not heard");
        stage
            .until("the woken waiter gets the lock", async || {
                matches!(ask(stage, &store, &key, &me).await, Ok(Attempt::Granted(_)))
            })
            .await;
        let released = Arc::clone(&store).release(key.clone(), me.clone()).await.unwrap();
        assert_eq!(released, Release::Released);
        (owner, _) = stage.taken(&key, stage.long()).await;
        me = secret();
    }
}

async fn a_far_waiter_is_served_beside_those_who_stand_near(stage: &Stage) {
    let way = Proxy::to(server(stage)).await.unwrap();
    let far = stage.engine(&stage.open_through(&way).await);
    way.requests(Flow::Delay(FAR));
    way.replies(Flow::Delay(FAR));
    let enough = Arc::new(AtomicBool::new(false));
    let mut near = tokio::task::JoinSet::new();
    for client in stage.open_many(3).await {
        let lock = stage.engine(&client);
        for _ in 0..3 {
            let (lock, enough) = (lock.clone(), Arc::clone(&enough));
            near.spawn(async move {
                while !enough.load(Ordering::Relaxed) {
                    let handle = lock.acquire("outage").wait_forever().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
                    handle.release().await.unwrap();
                }
            });
        }
    }
    for turn in 0..3 {
        let served = far.acquire("outage").wait(stage.patience).await;
        let served = served.unwrap_or_else(|error| panic!("turn {turn} never came: {error}"));
        served.release().await.unwrap();
    }
    enough.store(true, Ordering::Relaxed);
    while let Some(neighbour) = near.join_next().await {
        neighbour.unwrap();
    }
}
