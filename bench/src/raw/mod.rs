//! The requests of our stores without our library: each store's own client, and the same steps in
//! the same order.
//!
//! For Redis they are recorded, see [`crate::redis`]; here each step needs something of the answer
//! before it.

pub(crate) mod etcd;
pub(crate) mod firestore;
pub(crate) mod memcached;

/// About as long as what our stores write down of an owner.
const OWNER: &str = "host=a-host pid=12345 user=somebody command=holdtight-bench";
