//! The queue under shuttle: thousands of thread schedules, every mutex a scheduling point.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test -p holdtight-core --lib queue`, which `cargo
//! xtask ci` does.

use std::future::poll_fn;
use std::pin::Pin;

use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::{future, thread};

use super::*;

type Lines = Queue<Someone>;

#[derive(Clone, Default)]
struct Someone(Arc<Seat<Holding>>);

impl Waiter for Someone {
    type Lock = Holding;

    fn seat(&self) -> &Seat<Holding> {
        &self.0
    }
}

/// A store of one lock, and how often it was held.
#[derive(Default)]
struct Store {
    taken: AtomicBool,
    inside: AtomicUsize,
    grants: AtomicUsize,
}

impl Store {
    /// Asks until it is granted: only somebody at the front may.
    fn take(&self) {
        while self.taken.swap(true, Ordering::SeqCst) {
            thread::yield_now();
        }
    }
}

/// A held lock, given back when dropped: handed over, or released and the front passed on, as the
/// engine does it.
struct Holding {
    store: Arc<Store>,
    front: Option<Front<Someone>>,
}

impl Holding {
    fn new(store: &Arc<Store>, front: Front<Someone>) -> Self {
        store.grants.fetch_add(1, Ordering::SeqCst);
        Self { store: Arc::clone(store), front: Some(front) }
    }

    fn work(&self) {
        assert_eq!(self.store.inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
        thread::yield_now();
        self.store.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut front = self.front.take();
        while let Some(giving) = front.take() {
            match giving.next(Moment::from_nanos(0), false, true) {
                Next::HandOver(over) => {
                    let store = Arc::clone(&self.store);
                    if let Err(mut returned) = over.deliver(|_, front| Holding::new(&store, front))
                    {
                        front = returned.front.take();
                    }
                }
                Next::Release(last) | Next::Yield(last) => {
                    self.store.taken.store(false, Ordering::SeqCst);
                    drop(last);
                }
            }
        }
    }
}

/// One acquire call. With `leave` it stops waiting after a few looks.
fn acquire(queue: &Arc<Lines>, store: &Arc<Store>, leave: bool) -> Option<Holding> {
    let key = Key::new("k").unwrap();
    let waiter = Someone::default();
    let mut ticket = match queue.enter(&key, &waiter) {
        Entered::Front(front) => {
            store.take();
            return Some(Holding::new(store, front));
        }
        Entered::Behind(ticket) => ticket,
    };
    let turn = if leave {
        let mut looks = 0;
        let patient = poll_fn(|cx| match Pin::new(&mut ticket).poll(cx) {
            Poll::Ready(turn) => Poll::Ready(Some(turn)),
            Poll::Pending if looks == 2 => Poll::Ready(None),
            Poll::Pending => {
                looks += 1;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        });
        future::block_on(patient).or_else(|| ticket.leave())
    } else {
        Some(future::block_on(ticket))
    };
    match turn? {
        Turn::Granted(holding) => Some(holding),
        Turn::Contend(front, _) => {
            store.take();
            Some(Holding::new(store, front))
        }
        Turn::Closed => None,
    }
}

/// Exactly one holder at a time, nobody who stays is forgotten, and nothing is left behind.
fn contest(leavers: usize) {
    let (queue, store): (Arc<Lines>, _) = (Queue::new(), Arc::new(Store::default()));
    let served = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let (queue, store, served) =
                (Arc::clone(&queue), Arc::clone(&store), Arc::clone(&served));
            thread::spawn(move || {
                if let Some(holding) = acquire(&queue, &store, n < leavers) {
                    holding.work();
                    served.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(served.load(Ordering::SeqCst) >= 4 - leavers, "a waiter that stayed was forgotten");
    assert!(!store.taken.load(Ordering::SeqCst), "the lock was not given back");
    assert_eq!(queue.census(), (0, 0));
}

#[test]
fn four_that_stay() {
    shuttle::check_random(|| contest(0), 5_000);
    shuttle::check_pct(|| contest(0), 5_000, 3);
}

#[test]
fn two_that_leave() {
    shuttle::check_random(|| contest(2), 5_000);
    shuttle::check_pct(|| contest(2), 5_000, 3);
}

#[test]
fn all_leave() {
    shuttle::check_random(|| contest(4), 5_000);
}

#[test]
fn closing_while_others_come_and_go_leaves_nobody_waiting() {
    shuttle::check_random(
        || {
            let (queue, store): (Arc<Lines>, _) = (Queue::new(), Arc::new(Store::default()));
            let workers: Vec<_> = (0..3)
                .map(|n| {
                    let (queue, store) = (Arc::clone(&queue), Arc::clone(&store));
                    thread::spawn(move || drop(acquire(&queue, &store, n == 0)))
                })
                .collect();
            queue.close();
            for worker in workers {
                worker.join().unwrap();
            }
            assert_eq!(queue.census(), (0, 0));
        },
        5_000,
    );
}

/// Walks the lines until all of `workers` are served. Time flies, so that fronts at work are
/// overdue as well.
fn patrol(queue: &Arc<Lines>, served: &AtomicUsize, workers: usize) {
    let second = Duration::from_secs(1);
    let mut now = Moment::from_nanos(0);
    while served.load(Ordering::SeqCst) < workers {
        queue.patrol(now, second, second, |_| false);
        now = now.after(second);
        thread::yield_now();
    }
}

/// Somebody at the front and somebody behind it are not polled: all others are served, and then
/// these.
fn contest_beside_the_silent() {
    let (queue, store): (Arc<Lines>, _) = (Queue::new(), Arc::new(Store::default()));
    let served = Arc::new(AtomicUsize::new(0));
    let key = Key::new("k").unwrap();
    let (first, second) = (Someone::default(), Someone::default());
    let Entered::Front(forgotten) = queue.enter(&key, &first) else { panic!("not alone") };
    let Entered::Behind(mut silent) = queue.enter(&key, &second) else { panic!("alone") };
    let once = poll_fn(|cx| Poll::Ready(Pin::new(&mut silent).poll(cx).is_pending()));
    assert!(future::block_on(once));
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (queue, store, served) =
                (Arc::clone(&queue), Arc::clone(&store), Arc::clone(&served));
            thread::spawn(move || {
                acquire(&queue, &store, false).expect("it stays").work();
                served.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    patrol(&queue, &served, 2);
    for worker in workers {
        worker.join().unwrap();
    }
    // Nobody is there any more: whoever was passed over has its turn at once, and what is left is
    // the forgotten front.
    let Turn::Contend(front, _) = future::block_on(&mut silent) else { panic!("not called") };
    drop(front);
    drop(silent);
    drop(forgotten);
    assert!(!store.taken.load(Ordering::SeqCst), "the lock was not given back");
    assert_eq!(queue.census(), (0, 0));
}

#[test]
fn two_that_nobody_polls() {
    shuttle::check_random(contest_beside_the_silent, 5_000);
}

/// All come, late or early, while the patrol finds them overdue: nobody is forgotten.
fn contest_under_patrol() {
    let (queue, store): (Arc<Lines>, _) = (Queue::new(), Arc::new(Store::default()));
    let served = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..3)
        .map(|n| {
            let (queue, store, served) =
                (Arc::clone(&queue), Arc::clone(&store), Arc::clone(&served));
            thread::spawn(move || {
                if let Some(holding) = acquire(&queue, &store, n == 0) {
                    holding.work();
                }
                served.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    patrol(&queue, &served, 3);
    for worker in workers {
        worker.join().unwrap();
    }
    assert!(!store.taken.load(Ordering::SeqCst), "the lock was not given back");
    assert_eq!(queue.census(), (0, 0));
}

#[test]
fn three_that_come_late() {
    shuttle::check_random(contest_under_patrol, 5_000);
}
