//! Distributed locks: *you hold the lock, here is your fence number, and you will be told before
//! you stop holding it.*
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight::LockError> {
//! let lock = holdtight::connect("memory:").await?;
//! let receipt = lock
//!     .with_lock("invoice:7", async |held| format!("paid under fence {}", held.fence()))
//!     .await?;
//! # assert!(receipt.starts_with("paid"));
//! lock.shutdown().await
//! # }
//! ```
//!
//! # Stores
//!
//! A URL names the store; each kind is a feature of this crate, and its types stand in the module
//! of that name: [`file`](mod@file), `redis`, `postgres`, and so on.
//!
//! | URL | feature | cost | for |
//! |---|---|---|---|
//! | `file:` | `file` (default) | two small crates; no server | all processes of one machine; in your state directory |
//! | `file:/directory` | `file` (default) | the same | the same, in a directory of your choice |
//! | `memory:` | always there | nothing | one process, tests; private to the value |
//! | `memory:NAME` | always there | nothing | one process; shared by all who use the name while somebody has it |
//! | `redis://…`, `rediss://…`, `redis+sentinel://…`, `redis+cluster://…` | `redis` | the client `redis`; with the feature `tls`, which is on by default, TLS as well | Redis and Valkey |
//! | `postgres://…` | `postgres` | the client `tokio-postgres`; with `tls`, TLS as well | PostgreSQL |
//! | `memcached://…` | `memcached` | nothing but tokio: the client is ours | memcached, advisory unless it never evicts |
//! | `firestore://project/database` | `firestore` | HTTPS by `hyper`, Google credentials; without `tls` emulators only | Firestore |
//! | `etcd://…` | `etcd` | gRPC by `tonic`; with `tls`, TLS as well | etcd |
//!
//! Two more features: `metrics`, see below, and `serde`, for fences, keys, tokens and what is known
//! about a lock.
//!
//! A store of your own implements [`Backend`](store::Backend) and goes to
//! [`DistributedLock::builder`].
//!
//! # Telemetry
//!
//! Spans and events go to `tracing`; the feature `metrics` counts and times through the `metrics`
//! crate; [`Builder::on_event`] calls you. `docs/operations.md` shows all three, with a dashboard.
//!
//! # What to read next
//!
//! [`DistributedLock`] has the calls, [`LockHandle`] what a holder can do, [`LockError`] what can
//! go wrong, [`blocking`] the same for code without async. The guarantees, store by store and fault
//! by fault, stand in `docs/guarantees.md`.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod connect;
mod stores;
mod url;

/// For those who write a store of their own: the trait [`Backend`](store::Backend), with its
/// contract, and all that it is asked and answers.
pub mod store {
    #[doc(inline)]
    pub use holdtight_core::{
        AcquireRequest, Attempt, Backend, Bell, Busy, Capabilities, ExtendBy, ExtendRequest,
        Extension, Intent, Lease, Liveness, ManyAttempt, OpenStore, OwnerText, Release, Reply,
        Secret, Subscription, Transfer, TransferRequest, WakeUps, background, margin,
        spawn_lasting, valid_until,
    };
}

pub use connect::{ByUrl, builder, connect};
#[doc(inline)]
pub use holdtight_core::{
    Acquire, AcquireAll, AcquireOptions, BootClock, Builder, Clock, DEFAULT_TTL, DistributedLock,
    Election, ErrorKind, Event, EventKind, Fence, FencedRegister, Finding, Guarantees, Held,
    Holder, Jitter, Key, KeyForm, LIST_LIMIT, Leadership, Lease, Level, Liveness, LockError,
    LockHandle, LockInfo, LockOptions, LockSet, LockToken, Loss, MAX_TTL, MIN_TTL, ManualClock,
    MemoryStore, Moment, Operation, Owner, RetryPolicy, TokioClock, TryAcquire, Turn,
};
#[cfg(feature = "etcd")]
pub use holdtight_etcd as etcd;
#[cfg(feature = "file")]
pub use holdtight_file as file;
#[cfg(all(unix, feature = "file"))]
pub use holdtight_file::FencedFile;
#[cfg(feature = "firestore")]
pub use holdtight_firestore as firestore;
#[cfg(feature = "memcached")]
pub use holdtight_memcached as memcached;
#[cfg(feature = "postgres")]
pub use holdtight_postgres as postgres;
#[cfg(feature = "redis")]
pub use holdtight_redis as redis;
pub use stores::{migrate, open};
pub use url::StoreUrl;

/// The examples of README.md, which are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
