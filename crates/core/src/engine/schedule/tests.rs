//! The book under virtual time: what is due when, and what an answer means. No runtime, no clock.

use std::time::Duration;

use proptest::prelude::*;

use super::{Answer, Book, GrantId, Terms};
use crate::model::clock::Moment;
use crate::model::lease;
use crate::model::loss::Loss;

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);
const BATCH: usize = 256;

fn at(seconds: u64) -> Moment {
    Moment::from_nanos(1_000_000_000 * (1000 + seconds))
}

fn terms(sent_at: Moment) -> Terms {
    let valid_until = lease::valid_until(sent_at, TTL);
    Terms { ttl: TTL, sent_at, valid_until, hold_until: Moment::FAR_FUTURE, renew: true }
}

fn extended(sent_at: Moment) -> Answer {
    Answer::Extended { valid_until: lease::valid_until(sent_at, TTL), sent_at }
}

/// The renewals due at `now`; asserts that nothing is lost.
fn renewals(book: &mut Book<&'static str>, now: Moment) -> Vec<GrantId> {
    let due = book.due(now);
    assert!(due.lost.is_empty(), "lost {:?}", due.lost);
    due.renew.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn a_lease_is_renewed_after_a_third_of_it() {
    let mut book = Book::new(BATCH);
    let id = book.admit("a", terms(at(0)), 0.5);
    assert_eq!(renewals(&mut book, at(9)), []);
    assert_eq!(renewals(&mut book, at(10)), [id]);
    assert_eq!(renewals(&mut book, at(11)), [], "it is on its way already");
    assert!(book.answered(id, extended(at(10)), at(11), 0.5).is_none());
    assert_eq!(renewals(&mut book, at(19)), []);
    assert_eq!(renewals(&mut book, at(20)), [id]);
}

#[test]
fn a_failed_renewal_is_tried_again_and_is_no_loss() {
    let mut book = Book::new(BATCH);
    let id = book.admit("a", terms(at(0)), 0.5);
    assert_eq!(renewals(&mut book, at(10)), [id]);
    let mut now = at(10);
    let mut tries = 0;
    // Errors up to just before the deadline, then one success: the lock lives.
    while now < lease::valid_until(at(0), TTL).before(SECOND) {
        assert!(book.answered(id, Answer::Failed, now, 0.5).is_none(), "an error is not a loss");
        now = book.next_wake().unwrap();
        tries += renewals(&mut book, now).len();
    }
    assert!(tries >= 4, "only {tries} tries in two thirds of a lease");
    assert!(book.answered(id, extended(now), now, 0.5).is_none());
    assert_eq!(renewals(&mut book, now.after(SECOND)), []);
}

#[test]
fn it_is_lost_exactly_when_the_local_deadline_passes() {
    let mut book = Book::new(BATCH);
    let id = book.admit("a", terms(at(0)), 0.5);
    let deadline = lease::valid_until(at(0), TTL);
    assert_eq!(renewals(&mut book, at(10)), [id]);
    // The renewal hangs. One nanosecond before the deadline nothing is lost.
    assert_eq!(renewals(&mut book, deadline.before(Duration::from_nanos(1))), []);
    assert_eq!(book.next_wake(), Some(deadline));
    assert_eq!(book.due(deadline).lost, [("a", Loss::Expired)]);
    assert!(book.next_wake().is_none());
    // The late answer finds nothing to revive.
    assert!(book.answered(id, extended(at(29)), at(31), 0.5).is_none());
    assert!(book.next_wake().is_none());
}

#[test]
fn the_store_saying_no_is_a_loss_at_once() {
    let mut book = Book::new(BATCH);
    let id = book.admit("a", terms(at(0)), 0.5);
    renewals(&mut book, at(10));
    assert_eq!(book.answered(id, Answer::NotHeld, at(10), 0.5), Some(("a", Loss::TakenAway)));
    assert!(book.next_wake().is_none());
}

#[test]
fn an_answer_for_an_earlier_epoch_is_ignored() {
    let mut book = Book::new(BATCH);
    let old = book.admit("old", terms(at(0)), 0.5);
    renewals(&mut book, at(10));
    book.dismiss(old);
    // The slot is used again by another grant.
    let new = book.admit("new", terms(at(11)), 0.5);
    assert_ne!(old, new);
    assert!(
        book.answered(old, Answer::NotHeld, at(12), 0.5).is_none(),
        "the new grant must not be lost"
    );
    assert!(book.answered(old, extended(at(40)), at(41), 0.5).is_none());
    book.dismiss(old);
    assert_eq!(
        book.due(lease::valid_until(at(11), TTL)).lost,
        [("new", Loss::Expired)],
        "nor be prolonged"
    );
}

#[test]
fn max_hold_ends_it_however_often_it_is_renewed() {
    let mut book = Book::new(BATCH);
    let id = book.admit("a", Terms { hold_until: at(15), ..terms(at(0)) }, 0.5);
    assert_eq!(renewals(&mut book, at(10)), [id]);
    assert!(book.answered(id, extended(at(10)), at(10), 0.5).is_none());
    assert_eq!(book.next_wake(), Some(at(15)));
    assert_eq!(book.due(at(15)).lost, [("a", Loss::MaxHold)]);
}

#[test]
fn without_renewal_it_ends_with_its_lease_unless_the_holder_extends_it() {
    let mut book = Book::new(BATCH);
    let id = book.admit("a", Terms { renew: false, ..terms(at(0)) }, 0.5);
    assert_eq!(renewals(&mut book, at(20)), []);
    book.moved(id, lease::valid_until(at(20), TTL));
    assert_eq!(renewals(&mut book, at(40)), []);
    assert_eq!(book.due(at(50)).lost, [("a", Loss::Expired)]);
}

#[test]
fn locks_that_are_due_together_travel_together() {
    let mut book = Book::new(BATCH);
    for n in 0..100 {
        book.admit("a", terms(at(0)), f64::from(n) / 100.0);
    }
    let first = book.next_wake().unwrap();
    let batch = renewals(&mut book, first);
    assert!(batch.len() > 30, "a batch of {} wastes the request", batch.len());
    assert!(batch.len() < 100, "jitter must spread them");
}

#[test]
fn no_more_travel_together_than_fill_the_request() {
    let mut book = Book::new(8);
    for n in 0..100 {
        book.admit("a", terms(at(0)), f64::from(n) / 1000.0);
    }
    let first = book.next_wake().unwrap();
    assert_eq!(renewals(&mut book, first).len(), 8, "one is due, and seven more fill its request");
    assert_eq!(renewals(&mut book, first), [], "nothing is due, so nothing goes early");
    let second = book.next_wake().unwrap();
    assert_eq!(renewals(&mut book, second).len(), 8, "the rest is not forgotten");
    // What is due cannot wait: all of it goes, and the last request is filled up if there is
    // anybody to fill it.
    assert_eq!(renewals(&mut book, at(10)).len(), 84);
}

#[test]
fn a_book_that_was_full_once_does_not_stay_large() {
    let mut book = Book::new(BATCH);
    let ids: Vec<_> = (0..10_000).map(|_| book.admit("a", terms(at(0)), 0.5)).collect();
    for id in ids {
        book.dismiss(id);
    }
    assert_eq!(book.capacity(), 0);
}

proptest! {
    /// Whatever the store answers and whenever the keeper looks: nothing is called lost before its
    /// deadline unless the store said no, and nothing is kept past its deadline.
    #[test]
    fn lost_means_lost_and_nothing_else_does(steps in prop::collection::vec((1u64..8_000, 0u8..4, 0.0f64..1.0), 1..200)) {
        let mut book = Book::new(BATCH);
        let mut now = at(0);
        let mut deadline = lease::valid_until(now, TTL);
        let id = book.admit("a", terms(now), 0.5);
        let mut in_flight: Option<Moment> = None;
        for (millis, what, jitter) in steps {
            now = now.after(Duration::from_millis(millis));
            let due = book.due(now);
            if now >= deadline {
                prop_assert_eq!(due.lost, [("a", Loss::Expired)]);
                prop_assert!(book.next_wake().is_none());
                return Ok(());
            }
            prop_assert!(due.lost.is_empty());
            if !due.renew.is_empty() {
                prop_assert!(in_flight.is_none(), "two renewals of one lock at once");
                in_flight = Some(now);
            }
            if let Some(sent_at) = in_flight {
                let answer = match what {
                    0 => Answer::Failed,
                    1 => extended(sent_at),
                    2 if millis % 7 == 0 => Answer::NotHeld,
                    _ => continue,
                };
                in_flight = None;
                let lost = book.answered(id, answer, now, jitter);
                match answer {
                    Answer::NotHeld => {
                        prop_assert_eq!(lost, Some(("a", Loss::TakenAway)));
                        return Ok(());
                    }
                    Answer::Extended { valid_until, .. } => deadline = deadline.max(valid_until),
                    Answer::Failed => {}
                }
                prop_assert!(lost.is_none());
            }
            prop_assert!(book.next_wake().unwrap() <= deadline, "the keeper would sleep through the loss");
        }
    }
}
