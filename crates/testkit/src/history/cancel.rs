//! Futures that are given up: after a while, or after so many polls.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Polls `future` at most `polls` times, for at most `limit`, and then drops it.
pub(super) async fn give_up_after<T>(
    future: impl Future<Output = T>,
    polls: u32,
    limit: Duration,
) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = polls;
    let counted = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match Pin::new(&mut future).poll(context) {
            Poll::Ready(out) => Poll::Ready(Some(out)),
            // Given up where it stands, not when it is woken next.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    tokio::time::timeout(limit, counted).await.ok().flatten()
}
