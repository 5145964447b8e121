//! A directory for what the processes of one trial write; gone with the value.

use std::path::{Path, PathBuf};

pub(super) struct Place {
    path: PathBuf,
}

impl Place {
    pub(super) fn new() -> Self {
        let name = format!("holdtight-trial-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
