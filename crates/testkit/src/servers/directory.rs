//! A fresh directory for one server, removed when it is dropped.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};

/// A directory that only its owner can enter, and that ends with this value.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// A fresh one in the system's place for temporary files. Its path is short: sockets fit in it.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new() -> Self {
        Self::try_new()
            .unwrap_or_else(|error| panic!("cannot make a directory for a test: {error}"))
    }

    fn try_new() -> io::Result<Self> {
        loop {
            let name = format!("holdtight-{}-{:06x}", std::process::id(), fastrand::u32(..1 << 24));
            let path = std::env::temp_dir().join(name);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it to another user, who must be able to work in it.
    pub(super) fn give_to(&self, account: Option<Account>) -> io::Result<()> {
        match account {
            Some(account) => chown(&self.path, Some(account.user), Some(account.group)),
            None => Ok(()),
        }
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A server that is just ending may still write: the second try comes after it.
        if fs::remove_dir_all(&self.path).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// A user of this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) group: u32,
}

impl Account {
    /// The account for servers that refuse to run as root: `postgres` if we are root, else nobody
    /// but ourselves.
    pub(super) fn for_postgres() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let account = accounts.lines().find_map(|line| {
            let mut fields = line.split(':');
            let named = fields.next()? == "postgres";
            let mut numbers = fields.skip(1).map(str::parse);
            named.then_some(Self { user: numbers.next()?.ok()?, group: numbers.next()?.ok()? })
        });
        Some(account.expect("PostgreSQL refuses to run as root, and there is no user postgres"))
    }
}
