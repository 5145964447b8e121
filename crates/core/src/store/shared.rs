//! A store behind an `Arc` is a store: for programs that share one between several lock objects.

use std::sync::Arc;
use std::time::Duration;

use super::{
    AcquireRequest, Attempt, Backend, Capabilities, ExtendRequest, Extension, ManyAttempt, Release,
    Reply, Subscription, Transfer, TransferRequest,
};
use crate::model::error::LockError;
use crate::model::fence::Fence;
use crate::model::health::Guarantees;
use crate::model::holder::Holder;
use crate::model::key::Key;
use crate::model::secret::Secret;

/// All that a store does is done by the one inside, also what a store may leave at its default.
impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn capabilities(&self) -> Capabilities {
        B::capabilities(self)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        B::acquire(Arc::clone(&self), request)
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        B::release(Arc::clone(&self), key, secret)
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        B::lookup(Arc::clone(&self), key)
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        B::list(Arc::clone(&self), prefix, limit)
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        B::subscribe(Arc::clone(&self), key)
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        B::probe(Arc::clone(&self))
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        B::transfer(Arc::clone(&self), request)
    }

    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        B::acquire_many(Arc::clone(&self), requests)
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        B::force_release(Arc::clone(&self), key, fence)
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        B::extend(Arc::clone(&self), leases)
    }

    fn detach(self: Arc<Self>, key: Key, secret: Secret, ttl: Duration) -> Reply<Extension> {
        B::detach(Arc::clone(&self), key, secret, ttl)
    }

    fn release_now(&self, key: &Key, secret: &Secret) -> Option<Result<Release, LockError>> {
        B::release_now(self, key, secret)
    }
}
