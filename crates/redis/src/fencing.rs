//! Writing a value in Redis under the fence of a lock: what makes a lock truly safe.
//!
//! The largest fence that has written a value stands beside it, and a smaller one is refused in the
//! same step. The lock itself may be in any store.

use holdtight_core::{Fence, LockError};

use crate::store::RedisStore;

impl RedisStore {
    /// Writes `value` under the Redis key `name`, exactly as given, unless a later holder has
    /// written it already.
    ///
    /// A holder that was paused past its lease cannot tell; its late write is refused here, by its
    /// fence. The same holder may write as often as it likes. Everybody who writes the value must
    /// do it this way; readers use `GET`. The largest fence stays beside the value (`prefix`, byte
    /// 1, `fenced:`, `name`) and must outlive it: whoever deletes the value leaves the fence.
    ///
    /// ```no_run
    /// # async fn example(lock: holdtight_core::DistributedLock, store: holdtight_redis::RedisStore)
    /// #     -> Result<(), holdtight_core::LockError> {
    /// let held = lock.acquire("account:7").await?;
    /// store.fenced_set("balance:7", "70", held.fence()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`NotHeld`](holdtight_core::ErrorKind::NotHeld) if a later holder has written; the value is
    /// as it was. [`InvalidKey`](holdtight_core::ErrorKind::InvalidKey) on a cluster, if the prefix
    /// of the store has a hash tag and `name` has not the same.
    /// [`Ambiguous`](holdtight_core::ErrorKind::Ambiguous) if the answer was lost: the same write
    /// may be sent again.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have written.
    pub async fn fenced_set(
        &self,
        name: &str,
        value: impl AsRef<[u8]> + Sync,
        fence: Fence,
    ) -> Result<(), LockError> {
        let (id, beside) = (self.id(), self.names.fenced(name)?);
        let (mut answer, doubt) = self
            .run_durably(&crate::scripts::FENCED_SET, name, 2, id, self.config.timeout, |command| {
                command.arg(name).arg(&beside).arg(id).arg(fence.get()).arg(value.as_ref());
            })
            .await?;
        match answer.tag {
            b'W' => {
                answer.end()?;
                doubt.map_or(Ok(()), Err)
            }
            b'O' => {
                let refusal = format!(
                    "the write of {name:?} under fence {fence} is refused: a later holder has written under {}",
                    answer.text()?
                );
                answer.end()?;
                Err(LockError::not_held(refusal))
            }
            _ => answer.unexpected(),
        }
    }
}
