//! The file store where there are no Unix files: it builds, and says that it cannot be opened.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Capabilities, ExtendRequest, Extension, Guarantees, Holder,
    Key, LockError, Release, Reply, Secret,
};

use crate::config::Config;

/// Locks between the processes of one machine: not on this system.
#[derive(Debug)]
pub enum FileStore {}

/// What a sweep did: never anything on this system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {}

impl FileStore {
    /// Always an error here.
    ///
    /// # Errors
    /// [`Unsupported`](holdtight_core::ErrorKind::Unsupported).
    #[expect(clippy::unused_async, reason = "the same signature everywhere")]
    pub async fn open(config: Config) -> Result<Self, LockError> {
        Self::open_blocking(config)
    }

    /// Always an error here.
    ///
    /// # Errors
    /// [`Unsupported`](holdtight_core::ErrorKind::Unsupported).
    pub fn open_blocking(config: Config) -> Result<Self, LockError> {
        drop(config);
        Err(LockError::unsupported(
            "the file store needs Linux, macOS or another Unix; use a store that has a server",
        ))
    }

    /// Never called: there is no store.
    ///
    /// # Errors
    /// None.
    pub fn damaged(&self) -> Result<Vec<LockError>, LockError> {
        match *self {}
    }

    /// Never called: there is no store.
    ///
    /// # Errors
    /// None.
    pub fn sweep(&self, _idle: Duration) -> Result<Swept, LockError> {
        match *self {}
    }
}

impl Backend for FileStore {
    fn capabilities(&self) -> Capabilities {
        match *self {}
    }

    fn acquire(self: Arc<Self>, _request: AcquireRequest) -> Reply<Attempt> {
        match *self {}
    }

    fn release(self: Arc<Self>, _key: Key, _secret: Secret) -> Reply<Release> {
        match *self {}
    }

    fn extend(
        self: Arc<Self>,
        _leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        match *self {}
    }

    fn lookup(self: Arc<Self>, _key: Key) -> Reply<Option<Holder>> {
        match *self {}
    }

    fn list(self: Arc<Self>, _prefix: String, _limit: usize) -> Reply<Vec<Holder>> {
        match *self {}
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        match *self {}
    }
}
