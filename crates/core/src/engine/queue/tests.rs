//! The queue by itself: order, hand-over, leaving, and what stays behind.

use std::future::Future;
use std::pin::pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};

use super::*;

type Lines = Arc<Queue<Someone>>;

/// A waiter with a number.
#[derive(Clone)]
struct Someone(Arc<(u32, Seat<u32>)>);

impl Waiter for Someone {
    type Lock = u32;

    fn seat(&self) -> &Seat<u32> {
        &self.0.1
    }
}

/// Waiters live as long as the tests do.
fn someone(number: u32) -> &'static Someone {
    Box::leak(Box::new(Someone(Arc::new((number, Seat::default())))))
}

fn key() -> &'static Key {
    static KEY: LazyLock<Key> = LazyLock::new(|| Key::new("k").unwrap());
    &KEY
}

fn now() -> Moment {
    Moment::from_nanos(1 << 40)
}

fn front(queue: &Lines) -> Front<Someone> {
    match queue.enter(key(), someone(0)) {
        Entered::Front(front) => front,
        Entered::Behind(_) => panic!("somebody is at the front"),
    }
}

fn behind(queue: &Lines, number: u32) -> Ticket<'_, Someone> {
    match queue.enter(key(), someone(number)) {
        Entered::Behind(ticket) => ticket,
        Entered::Front(_) => panic!("nobody is at the front"),
    }
}

fn turn(ticket: &mut Ticket<'_, Someone>) -> Option<Turn<Someone>> {
    match pin!(ticket).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(turn) => Some(turn),
        Poll::Pending => None,
    }
}

fn hand_over(next: Next<Someone>) -> HandOver<Someone> {
    match next {
        Next::HandOver(over) => over,
        Next::Release(_) | Next::Yield(_) => panic!("nobody to hand over to"),
    }
}

#[test]
fn the_front_goes_to_whoever_came_first() {
    let queue = Queue::new();
    let first = front(&queue);
    let mut waiters: Vec<_> = (1..=3).map(|n| behind(&queue, n)).collect();
    drop(first);
    for n in 0..3 {
        assert!(waiters[n + 1..].iter_mut().all(|later| turn(later).is_none()), "out of order");
        let Some(Turn::Contend(front, Why::Vacant)) = turn(&mut waiters[n]) else {
            panic!("not called")
        };
        drop(front);
    }
    assert_eq!(queue.census(), (0, 0));
}

#[test]
fn a_lock_is_handed_to_the_first_who_is_still_there() {
    let queue = Queue::new();
    let first = front(&queue);
    let (left, mut stays) = (behind(&queue, 1), behind(&queue, 2));
    drop(left);
    let over = hand_over(first.next(now(), false, true));
    assert_eq!(over.waiter().0.0, 2);
    over.deliver(|_, front| {
        // The new holder has the front now; the test lets go of it at once.
        drop(front);
        42
    })
    .unwrap();
    assert!(matches!(turn(&mut stays), Some(Turn::Granted(42))));
    assert_eq!(queue.census(), (0, 0));
}

#[test]
fn a_grant_for_someone_who_left_comes_back() {
    let queue = Queue::new();
    let first = front(&queue);
    let ticket = behind(&queue, 1);
    let over = hand_over(first.next(now(), false, true));
    drop(ticket);
    let mut kept = None;
    let returned = over.deliver(|_, front| {
        kept = Some(front);
        7
    });
    assert_eq!(returned, Err(7));
    drop(kept);
    assert_eq!(queue.census(), (0, 0));
}

#[test]
fn a_hand_over_that_is_abandoned_puts_the_waiter_to_the_front() {
    let queue = Queue::new();
    let first = front(&queue);
    let (mut ticket, mut next) = (behind(&queue, 1), behind(&queue, 2));
    drop(hand_over(first.next(now(), false, true)));
    let called = turn(&mut ticket);
    assert!(matches!(called, Some(Turn::Contend(_, Why::Uncertain))));
    assert!(turn(&mut next).is_none(), "two at the front");
    drop(called);
    assert!(matches!(turn(&mut next), Some(Turn::Contend(_, Why::Vacant))));
}

#[test]
fn a_turn_that_nobody_reads_is_passed_on() {
    let queue = Queue::new();
    let first = front(&queue);
    let (unread, mut next) = (behind(&queue, 1), behind(&queue, 2));
    drop(first);
    drop(unread);
    assert!(matches!(turn(&mut next), Some(Turn::Contend(..))));
}

#[test]
fn other_processes_get_their_chance_after_a_streak() {
    let queue = Queue::new();
    let mut holder = front(&queue);
    let mut tickets: Vec<_> = (0..200).map(|n| behind(&queue, n)).collect();
    let mut in_a_row = 0;
    for ticket in &mut tickets {
        match holder.next(now(), true, true) {
            Next::HandOver(over) => {
                let mut kept = None;
                over.deliver(|_, front| {
                    kept = Some(front);
                    0
                })
                .unwrap();
                assert!(matches!(turn(ticket), Some(Turn::Granted(_))));
                holder = kept.unwrap();
                in_a_row += 1;
            }
            Next::Yield(front) => {
                assert_eq!(in_a_row, 32);
                front.yield_on();
                let Some(Turn::Contend(front, Why::Yielded)) = turn(ticket) else {
                    panic!("not called")
                };
                holder = front;
                in_a_row = 0;
            }
            Next::Release(_) => panic!("there are waiters"),
        }
    }
    drop(tickets);
    drop(holder);
    assert_eq!(queue.census(), (0, 0));
}

#[test]
fn a_streak_also_ends_by_time_and_never_if_nobody_else_waits() {
    let queue: Lines = Queue::new();
    let later = now().after(Duration::from_secs(1));
    let first = front(&queue);
    let _tickets: Vec<_> = (0..3).map(|n| behind(&queue, n)).collect();
    let mut kept = None;
    hand_over(first.next(now(), true, true))
        .deliver(|_, front| kept.insert(front).armed.into())
        .unwrap();
    assert!(matches!(kept.unwrap().next(later, true, true), Next::Yield(_)));

    let queue: Lines = Queue::new();
    let mut holder = front(&queue);
    let mut tickets: Vec<_> = (0..100).map(|n| behind(&queue, n)).collect();
    for ticket in &mut tickets {
        let mut kept = None;
        hand_over(holder.next(later, false, true))
            .deliver(|_, front| kept.insert(front).armed.into())
            .unwrap();
        turn(ticket);
        holder = kept.unwrap();
    }
}

#[test]
fn closing_tells_everybody() {
    let queue = Queue::new();
    let _first = front(&queue);
    let mut tickets: Vec<_> = (0..5).map(|n| behind(&queue, n)).collect();
    queue.close();
    assert!(tickets.iter_mut().all(|ticket| matches!(turn(ticket), Some(Turn::Closed))));
}

#[test]
fn those_who_leave_take_their_memory_with_them() {
    let queue = Queue::new();
    let first = front(&queue);
    let mut tickets: Vec<_> = (0..100_000).map(|n| behind(&queue, n)).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut tickets);
    tickets.truncate(10);
    assert!(queue.census().1 <= 21, "{} places kept for ten waiters", queue.census().1);
    drop(tickets);
    assert_eq!(queue.census(), (1, 0));
    drop(first);
    assert_eq!(queue.census(), (0, 0));
}

#[test]
fn a_front_that_is_overdue_is_replaced_and_has_nothing_to_pass_on_any_more() {
    let (queue, second) = (Queue::new(), Duration::from_secs(1));
    let forgotten = front(&queue);
    let (mut one, mut two) = (behind(&queue, 1), behind(&queue, 2));
    let at = |seconds: u32| now().after(second * seconds);
    let free = |_: &Key| false;
    assert!(queue.patrol(at(0), second, second, free), "somebody waits");
    assert!(turn(&mut one).is_none(), "whoever is at the front has a while");
    forgotten.back_by(at(5));
    queue.patrol(at(4), second, second, free);
    assert!(turn(&mut one).is_none() && turn(&mut two).is_none(), "it said when it would be back");
    queue.patrol(at(6), second, second, |_| true);
    assert!(turn(&mut one).is_none(), "it holds the lock");
    queue.patrol(at(8), second, second, free);
    assert!(turn(&mut one).is_none() && turn(&mut two).is_none(), "they were only asked");
    queue.patrol(at(9), second, second, free);
    let Some(Turn::Contend(next, Why::Vacant)) = turn(&mut one) else { panic!("not replaced") };
    // The first one comes back: it finds nobody to hand over to, and does not call anybody.
    assert!(!forgotten.has_waiters() && next.has_waiters());
    forgotten.back_by(at(100));
    drop(forgotten);
    assert!(turn(&mut two).is_none());
    drop(next);
    let Some(Turn::Contend(second_next, _)) = turn(&mut two) else { panic!("not called") };
    assert!(!queue.patrol(at(10), second, second, free), "nobody waits");
    drop(second_next);
    drop((one, two));
    assert_eq!(queue.census(), (0, 0));
}

/// Asks everybody in line, then replaces the front: two rounds of the patrol.
fn replace_front(queue: &Lines, answering: &mut [&mut Ticket<'_, Someone>]) {
    let (second, free) = (Duration::from_secs(1), |_: &Key| false);
    queue.patrol(now(), Duration::ZERO, second, free);
    queue.patrol(now(), Duration::ZERO, second, free);
    for ticket in answering {
        assert!(turn(ticket).is_none(), "the front was not free yet");
    }
    queue.patrol(now(), Duration::ZERO, second, free);
}

#[test]
fn those_who_do_not_answer_are_passed_over_and_keep_their_places() {
    let queue = Queue::new();
    let forgotten = front(&queue);
    let mut tickets: Vec<_> = (1..=5).map(|n| behind(&queue, n)).collect();
    let [silent, slow, live, quiet, later] = &mut tickets[..] else { unreachable!() };
    replace_front(&queue, &mut [live, later]);
    let Some(Turn::Contend(first, Why::Vacant)) = turn(live) else { panic!("not called") };
    // Before its turn it is polled again: it comes before the others, and is handed the lock.
    assert!(turn(slow).is_none());
    let over = hand_over(first.next(now(), false, true));
    assert_eq!(over.waiter().0.0, 2);
    over.contend(Why::Vacant).unwrap();
    let Some(Turn::Contend(second, _)) = turn(slow) else { panic!("not called") };
    drop(second);
    let Some(Turn::Contend(third, _)) = turn(later) else { panic!("not called") };
    // Only those are left who do not answer: nothing is handed to them, and they are in nobody's
    // way.
    let Next::Release(third) = third.next(now(), false, true) else { panic!("handed over") };
    drop(third);
    let newcomer = front(&queue);
    assert!(turn(quiet).is_none(), "two at the front");
    drop(newcomer);
    let Some(Turn::Contend(fourth, _)) = turn(quiet) else { panic!("not called") };
    drop(fourth);
    let Some(Turn::Contend(last, _)) = turn(silent) else { panic!("the front was free") };
    drop(last);
    drop((forgotten, tickets));
    assert_eq!(queue.census(), (0, 0));
}

#[test]
fn a_front_that_nobody_wanted_goes_to_whoever_comes_first() {
    for comes in [0, 1] {
        let queue = Queue::new();
        let forgotten = front(&queue);
        let mut tickets: Vec<_> = (1..=2).map(|n| behind(&queue, n)).collect();
        replace_front(&queue, &mut []);
        let Some(Turn::Contend(front, Why::Vacant)) = turn(&mut tickets[comes]) else {
            panic!("nobody was at the front")
        };
        assert!(turn(&mut tickets[1 - comes]).is_none(), "two at the front");
        assert!(queue.try_front(key()).is_none());
        drop(front);
        assert!(matches!(turn(&mut tickets[1 - comes]), Some(Turn::Contend(..))));
        drop((forgotten, tickets));
        assert_eq!(queue.census(), (0, 0));
    }
}

#[test]
fn those_who_never_answer_leave_nothing_behind() {
    for closed in [false, true] {
        let queue = Queue::new();
        let forgotten = front(&queue);
        let mut tickets: Vec<_> = (1..=100).map(|n| behind(&queue, n)).collect();
        replace_front(&queue, &mut []);
        assert_eq!(queue.census(), (1, 100));
        if closed {
            queue.close();
            assert!(tickets.iter_mut().all(|ticket| matches!(turn(ticket), Some(Turn::Closed))));
        }
        drop(tickets);
        assert_eq!(queue.census(), (0, 0));
        drop(forgotten);
    }
}
