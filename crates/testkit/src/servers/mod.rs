//! Real servers for tests: each on free loopback ports, in a directory of its own, gone with the
//! value that has it.
//!
//! Nothing here uses a daemon that runs anyway. A start waits until the server answers and proves
//! that it is *our* child that does. When the test process dies without a word (`SIGKILL`, `exit`),
//! a small shell on a pipe from it, the leash, ends the server and removes the directory.

/// Gives a launcher `shared`: one server for all tests of a process.
macro_rules! shared {
    ($server:ty) => {
        /// The one that all tests of this process share, for tests that keep to a namespace of
        /// their own. It ends with the process.
        ///
        /// # Panics
        /// When it cannot be started; the message says why.
        pub async fn shared() -> ::std::sync::Arc<Self> {
            // Never dropped: the leash ends it.
            static SHARED: ::tokio::sync::OnceCell<::std::sync::Arc<$server>> =
                ::tokio::sync::OnceCell::const_new();
            let start = async || ::std::sync::Arc::new(<$server>::start().await);
            ::std::sync::Arc::clone(SHARED.get_or_init(start).await)
        }
    };
}

mod directory;
mod etcd;
mod firestore;
mod memcached;
mod pgbouncer;
mod port;
mod postgres;
mod postgres_pair;
mod process;
mod program;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod slot_move;
mod wire;

pub use directory::Directory;
pub use etcd::{Etcd, EtcdCluster};
pub use firestore::Firestore;
pub use memcached::Memcached;
pub use pgbouncer::PgBouncer;
pub use port::free_port;
pub use postgres::Postgres;
pub use postgres_pair::PostgresPair;
pub use process::Process;
pub use program::Program;
pub use redis::Redis;
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use slot_move::SlotMove;
