//! Who may knock while nobody answers: one at a time for all callers, with pauses that grow.
//!
//! Every request that finds no open connection opens one. In an outage that would be one for each retry of each caller.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdtight_core::LockError;
use tokio::time::{Instant, sleep_until};

/// The longest pause before the next request; the first is a twentieth of it.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The way to the server, shared by all callers.
#[derive(Default)]
pub(crate) struct Door {
    /// Held by the one who asks, while nobody is answered.
    gate: tokio::sync::Mutex<()>,
    trouble: Mutex<Option<Trouble>>,
}

/// What failed since the last answer.
struct Trouble {
    in_a_row: u32,
    last: Instant,
}

/// Leave to ask; kept until the outcome is known.
pub(crate) struct Leave<'d> {
    _one: Option<tokio::sync::MutexGuard<'d, ()>>,
    since: Instant,
}

impl Door {
    /// Waits until it is this caller's turn to ask. Whoever waited while another one asked in vain shares its failure.
    pub(crate) async fn enter(&self) -> Result<Leave<'_>, LockError> {
        let arrived = Instant::now();
        if self.trouble().is_none() {
            return Ok(Leave { _one: None, since: arrived });
        }
        let one = self.gate.lock().await;
        let wait_until = match &*self.trouble() {
            None => return Ok(Leave { _one: None, since: Instant::now() }),
            Some(trouble) if trouble.last >= arrived => {
                return Err(LockError::unavailable(
                    "Firestore does not answer, as another request has just found; check the network",
                ));
            }
            Some(trouble) => trouble.last + pause(trouble.in_a_row),
        };
        sleep_until(wait_until).await;
        Ok(Leave { _one: Some(one), since: Instant::now() })
    }

    /// Notes whether the server has answered, whatever it said.
    pub(crate) fn leave(&self, leave: &Leave<'_>, answered: bool) {
        let mut trouble = self.trouble();
        *trouble = match trouble.take() {
            _ if answered => None,
            // Requests that failed together failed once.
            Some(Trouble { in_a_row, last }) if last >= leave.since => {
                Some(Trouble { in_a_row, last: Instant::now() })
            }
            before => {
                let in_a_row = before.map_or(0, |before| before.in_a_row).saturating_add(1);
                Some(Trouble { in_a_row, last: Instant::now() })
            }
        };
    }

    /// Nothing can panic while this is held.
    fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Doubling, with jitter: a thousand clients of a server that comes back do not come at once.
fn pause(failures: u32) -> Duration {
    let longest = (LONGEST_PAUSE / 40).saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}
