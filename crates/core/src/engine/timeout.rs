//! A limit on how long something may take, made for steps that are often done at once.
//!
//! `tokio::time::timeout` carries its timer inside, in every future that may ever need it. This one
//! makes the timer when there is something to wait for, so that the futures of all steps stay
//! small.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::coop::Unconstrained;
use tokio::time::Sleep;

/// The answer if it comes within `limit`.
pub(crate) fn within<F: Future + Unpin>(limit: Duration, call: &mut F) -> Within<'_, F> {
    Within { call, limit, timer: None }
}

pub(crate) struct Within<'a, F> {
    call: &'a mut F,
    limit: Duration,
    /// Not bound by the task's budget, or a call that uses it up would never be timed out.
    timer: Option<Pin<Box<Unconstrained<Sleep>>>>,
}

impl<F: Future + Unpin> Future for Within<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let this = &mut *self;
        if let Poll::Ready(answer) = Pin::new(&mut *this.call).poll(cx) {
            return Poll::Ready(Some(answer));
        }
        let limit = this.limit;
        let timer = this.timer.get_or_insert_with(|| {
            Box::pin(tokio::task::coop::unconstrained(tokio::time::sleep(limit)))
        });
        timer.as_mut().poll(cx).map(|()| None)
    }
}
