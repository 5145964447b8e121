//! Taking up a lock by its token.
//!
//! A token is plain data and may have been copied: a message that is delivered twice, a file that
//! two processes read. So it is good for one holder only. The lock moves to a fresh secret and a
//! fresh fence in one step of the store, which uses the token up: whoever comes second finds
//! nothing, and what the first one left behind is refused by its fence.
//!
//! The fresh secret is kept for the retries of the call, so that a lost answer can be asked for
//! again. A call that is given up hands the lock back to its token.

use std::sync::Arc;

use crate::engine::acquire::SHORTEST_PAUSE;
use crate::engine::claim::Claim;
use crate::engine::event::EventKind;
use crate::engine::instance::Engine;
use crate::engine::options::AcquireOptions;
use crate::engine::release::Hold;
use crate::model::error::LockError;
use crate::model::secret::Secret;
use crate::model::token::LockToken;
use crate::store::{Intent, Transfer, TransferRequest};

/// Takes up the lock of `token`, and keeps it as `options` says.
pub(crate) async fn resume(
    engine: Arc<Engine>,
    token: LockToken,
    options: Arc<AcquireOptions>,
) -> Result<Hold, LockError> {
    tokio::task::coop::consume_budget().await;
    engine.check_open()?;
    Engine::check_runtime()?;
    let key = token.key().clone();
    let about = |error: LockError| error.with_key(&engine.user_key(&key));
    options.check(&engine.store).map_err(about)?;
    if !engine.store.transfer {
        return Err(about(LockError::unsupported(
            "this store cannot move a lock to another owner, so nobody can take it up by its \
             token; extend and release it by the token",
        )));
    }
    // An earlier call for the same token may have been given up just now.
    let _ = tokio::time::timeout(engine.step_timeout, engine.returning.over(token.secret())).await;
    let from = token.secret().clone();
    let claim = Claim::from_token(Arc::clone(&engine), token, options)?;
    let resumed = take_up(claim, &from).await.map_err(about);
    if let Err(error) = &resumed {
        engine.events.emit(EventKind::ExtendFailed, &key, None, Some(error));
    }
    resumed
}

/// Asks until there is an answer, or until there was none for as long as an outage may last.
async fn take_up(mut claim: Claim<Transfer>, from: &Secret) -> Result<Hold, LockError> {
    let mut outage = None;
    for attempts in 1.. {
        let limit = claim.engine.step_timeout.min(claim.request.options.ttl);
        let ask = |claim: &Claim<Transfer>| {
            let request = TransferRequest::new(from.clone(), claim.request.to_store(Intent::Try));
            Arc::clone(&claim.engine.backend).transfer(request)
        };
        let error = match claim.ask("resume", |_| limit, ask).await {
            (sent_at, Ok(Transfer::Transferred(lease))) => {
                // A request that arrives later finds the token used up, and does nothing.
                claim.granted();
                let (engine, request) = (Arc::clone(&claim.engine), claim.request.clone());
                let grant = engine.admit(request, lease, sent_at, None, attempts);
                let hold = Hold::new(engine, grant);
                return hold.held().check().map(|()| hold);
            }
            (_, Ok(Transfer::NotHeld)) => return Err(not_held()),
            (_, Err(error)) => error,
        };
        let now = claim.engine.clock.now();
        let retry = &claim.request.options.retry;
        let lasted = now.since(*outage.get_or_insert(now));
        if !error.kind().is_transient() || lasted >= retry.outage() {
            return Err(error);
        }
        tracing::debug!(key = %claim.request.key, %error, "a lock could not be taken up; trying again");
        let pause = retry.delay(attempts - 1, fastrand::f64());
        tokio::time::sleep(pause.max(SHORTEST_PAUSE)).await;
    }
    unreachable!("the attempts are not counted to their end")
}

pub(crate) fn not_held() -> LockError {
    LockError::not_held(
        "its lease is over, or it was released, or another holder took it up; acquire it again",
    )
}
