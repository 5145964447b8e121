//! The long runs, one file each. A new one is a file here and a line in [`all`].
//!
//! A run finds out what only time or numbers bring: what stays behind, what grows, what is lost. It
//! fails by an error, never by being slow.

mod distinct_keys;
mod election;
mod failover;
pub(crate) mod held;
mod load;
mod several_keys;
mod under_faults;

use crate::Failure;

/// One long run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Soak {
    /// For `--only`.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Runs it at a share of its full size, says what it found.
    pub run: fn(scale: f64) -> Result<String, Failure>,
}

/// Every long run.
pub fn all() -> Vec<Soak> {
    vec![
        Soak {
            name: "memory-keys",
            about: "a million keys locked and released once leave nothing in the memory store",
            run: distinct_keys::memory,
        },
        Soak {
            name: "election-weather",
            about: "10 000 leaders over a store in bad weather: never two at once, never none for ever",
            run: election::in_bad_weather,
        },
        Soak {
            name: "election-kills",
            about: "10 000 leaders in processes that are killed: never two at once, never none for ever",
            run: election::under_kills,
        },
        Soak {
            name: "several-keys-weather",
            about: "10 000 sets of keys over a store in bad weather: never a key twice, no deadlock",
            run: several_keys::in_bad_weather,
        },
        Soak {
            name: "several-keys-kills",
            about: "10 000 sets of keys in processes that are killed: never a key twice, no deadlock",
            run: several_keys::under_kills,
        },
        Soak {
            name: "redis-keys",
            about: "the same on Redis: no key and no memory",
            run: distinct_keys::redis,
        },
        Soak {
            name: "postgres-keys",
            about: "the same on PostgreSQL: no row after a sweep",
            run: distinct_keys::postgres,
        },
        Soak {
            name: "file-keys",
            about: "the same in the file store: no file after a sweep",
            run: distinct_keys::files,
        },
        Soak {
            name: "redis-held",
            about: "100 000 locks held and renewed on Redis for five minutes: none is lost",
            run: held::redis,
        },
        Soak {
            name: "load-memory",
            about: "20 000 locks taken in every way there is from the memory store, also with lost calls: no promise is broken",
            run: load::memory,
        },
        Soak {
            name: "load-file",
            about: "20 000 locks taken in every way there is from the file store, also in processes that are stopped and killed: no promise is broken",
            run: load::file,
        },
        Soak { name: "load-redis", about: "the same on Redis", run: load::redis },
        Soak { name: "load-postgres", about: "the same on PostgreSQL", run: load::postgres },
        Soak { name: "load-etcd", about: "the same on etcd", run: load::etcd },
        Soak {
            name: "load-redis-cluster-moves",
            about: "5 000 locks taken in every way there is while their slots move between the nodes of a Redis Cluster",
            run: failover::redis_cluster,
        },
        Soak {
            name: "load-redis-sentinel",
            about: "the same through failovers of Redis by Sentinel, with and without waiting for the replica",
            run: failover::redis_sentinel,
        },
        Soak {
            name: "load-postgres-standby",
            about: "the same while PostgreSQL primaries die and their synchronous standbys are promoted",
            run: failover::postgres,
        },
        Soak {
            name: "load-etcd-leaders",
            about: "the same while the leader of three etcd members is killed and moved",
            run: failover::etcd,
        },
        Soak { name: "load-memcached", about: "the same on Memcached", run: load::memcached },
        Soak { name: "load-firestore", about: "the same on Firestore", run: load::firestore },
    ]
}

/// `scale` of `full`, at least one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "sizes of runs are far below 2^52, and rounded"
)]
fn share(full: u64, scale: f64) -> u64 {
    ((full as f64 * scale).round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_and_never_empty() {
        assert_eq!(share(1_000_000, 0.05), 50_000);
        assert_eq!(share(3, 0.01), 1);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = all().iter().map(|soak| soak.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
