//! Finds the programs that tests start, and says how to install one that is missing.

use std::path::{Path, PathBuf};

/// A program that some test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Program {
    /// The file name of the program.
    pub name: &'static str,
    /// The command that installs it.
    pub install: &'static str,
}

impl Program {
    /// `redis-server`.
    pub const REDIS: Self = Self::new("redis-server", "apt-get install redis-server");
    /// `redis-cli`.
    pub const REDIS_CLI: Self = Self::new("redis-cli", "apt-get install redis-tools");
    /// `postgres`.
    pub const POSTGRES: Self = Self::new("postgres", "apt-get install postgresql");
    /// `initdb`, which makes a data directory for it.
    pub const INITDB: Self = Self::new("initdb", "apt-get install postgresql");
    /// `pg_basebackup`, which copies a running server for a standby.
    pub const PG_BASEBACKUP: Self = Self::new("pg_basebackup", "apt-get install postgresql");
    /// `psql`.
    pub const PSQL: Self = Self::new("psql", "apt-get install postgresql-client");
    /// `pgbouncer`.
    pub const PGBOUNCER: Self = Self::new("pgbouncer", "apt-get install pgbouncer");
    /// `memcached`.
    pub const MEMCACHED: Self = Self::new("memcached", "apt-get install memcached");
    /// `etcd`.
    pub const ETCD: Self = Self::new("etcd", "apt-get install etcd-server");
    /// `hidane`, a Firestore emulator.
    pub const HIDANE: Self =
        Self::new("hidane", "cargo install hidane --version 0.6.0 --locked --root target/tools");

    const fn new(name: &'static str, install: &'static str) -> Self {
        Self { name, install }
    }

    /// Where it is, if it is here.
    pub fn find(self) -> Option<PathBuf> {
        let named = std::env::var_os("PATH")?;
        let usual = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin"].map(PathBuf::from);
        std::env::split_paths(&named)
            .chain(usual)
            .chain(newest_postgres())
            .chain(built_tools())
            .map(|place| place.join(self.name))
            .find(|path| path.is_file())
    }

    /// What to tell somebody who lacks it; `None` if it is here. Fits
    /// [`Fixture::missing`](crate::Fixture::missing).
    pub fn missing(self) -> Option<String> {
        match self.find() {
            Some(_) => None,
            None => Some(format!("{} is not installed; run: {}", self.name, self.install)),
        }
    }

    /// Whether a test that needs it can run; says on stderr why not.
    ///
    /// # Panics
    /// When it is missing and `CI=true`: there a test that does not run is a failure.
    pub fn available(self) -> bool {
        let Some(missing) = self.missing() else { return true };
        assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "{missing}");
        eprintln!("skipped: {missing}");
        false
    }

    /// Where it is.
    pub(super) fn path(self) -> PathBuf {
        self.find().unwrap_or_else(|| panic!("{}", self.missing().unwrap_or_default()))
    }
}

/// Debian keeps PostgreSQL's programs out of the path, one directory per major version.
fn newest_postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.flatten().map(|entry| entry.path()).max_by_key(version)?;
    Some(newest.join("bin"))
}

/// Programs that cargo built for the tests of this workspace: `target/tools/bin` here or further
/// up.
fn built_tools() -> Vec<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let here = std::env::current_dir().unwrap_or_default();
    let above = here.ancestors().map(|place| place.join("target"));
    target.into_iter().chain(above).map(|place| place.join(Path::new("tools/bin"))).collect()
}
