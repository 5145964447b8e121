//! Which tokens have a lock on its way back to them: a call that was given up hands it back, and
//! another call for the same token waits for that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::model::secret::Secret;

/// The tokens to which locks are being handed back.
#[derive(Debug, Default)]
pub(crate) struct Returning {
    tokens: Mutex<Vec<Secret>>,
    over: Notify,
}

impl Returning {
    fn tokens(&self) -> MutexGuard<'_, Vec<Secret>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(self: &Arc<Self>, token: &Secret) -> Return {
        self.tokens().push(token.clone());
        Return { all: Arc::clone(self), token: token.clone() }
    }

    /// Resolves when nothing is being handed back to `token`.
    pub(crate) async fn over(&self, token: &Secret) {
        loop {
            let over = self.over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            if !self.tokens().contains(token) {
                return;
            }
            over.await;
        }
    }
}

/// One lock on its way back to its token. Dropping it says that it is over.
pub(crate) struct Return {
    all: Arc<Returning>,
    token: Secret,
}

impl Drop for Return {
    fn drop(&mut self) {
        let mut tokens = self.all.tokens();
        if let Some(at) = tokens.iter().position(|token| *token == self.token) {
            tokens.swap_remove(at);
        }
        drop(tokens);
        self.all.over.notify_waiters();
    }
}
