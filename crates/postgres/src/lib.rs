//! The PostgreSQL store of holdtight: locks as rows, one durable statement per step.
//!
//! ```no_run
//! # async fn example() -> Result<(), holdtight_core::LockError> {
//! use holdtight_postgres::{PostgresStore, migrate};
//! let url = "postgres://app@db.example/app";
//! migrate(url).await?;                             // once, by a role that may create a schema
//! let store = PostgresStore::connect(url).await?;  // by any role that was granted EXECUTE
//! # let _ = store; Ok(())
//! # }
//! ```
//!
//! Each step is one call of one function in the database, in a transaction of its own and in one
//! round trip. Nothing is kept in the session, so a transaction pooler such as `PgBouncer` may
//! stand in between. `docs/stores/postgres.md` says what is promised, which rights are needed, and
//! how a write in the same database is fenced.

mod batch;
mod config;
mod connect;
mod environment;
mod error;
mod fencing;
mod listen;
mod native;
mod pool;
mod probe;
mod rows;
mod schema;
mod store;
mod sweep;
mod syncguard;
#[cfg(not(feature = "tls"))]
#[path = "plain.rs"]
mod tls;
#[cfg(feature = "tls")]
mod tls;
mod unresolved;

pub use config::{Layout, PostgresConfig, TlsMode};
pub use schema::{SCHEMA_SQL, migrate, migrate_with};
pub use store::PostgresStore;
