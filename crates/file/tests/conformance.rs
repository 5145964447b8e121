//! The suite that every store passes, on this one: as it is by default, and with every step synced
//! to the disk.

#![cfg(unix)]

use std::sync::Arc;

use holdtight_core::Backend;
use holdtight_file::{Config, FileStore};
use holdtight_testkit::Fixture;
use holdtight_testkit::conformance::Suite;
use tempfile::TempDir;

struct Plain(TempDir);
struct Synced(TempDir);

async fn open(config: Config) -> Arc<dyn Backend> {
    Arc::new(FileStore::open(config).await.unwrap())
}

impl Fixture for Plain {
    const NAME: &'static str = "file";

    async fn start() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    async fn open(&self) -> Arc<dyn Backend> {
        open(Config::new(self.0.path())).await
    }

    fn address(&self) -> Option<String> {
        Some(format!("file:{}", self.0.path().display()))
    }

    async fn join(address: String) -> Arc<dyn Backend> {
        open(Config::from_url(&address).unwrap()).await
    }
}

impl Fixture for Synced {
    const NAME: &'static str = "file-sync";

    async fn start() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    async fn open(&self) -> Arc<dyn Backend> {
        open(Config::new(self.0.path()).sync(true)).await
    }

    fn address(&self) -> Option<String> {
        Some(format!("file:{}?sync=1", self.0.path().display()))
    }

    async fn join(address: String) -> Arc<dyn Backend> {
        open(Config::from_url(&address).unwrap()).await
    }
}

fn main() {
    Suite::new().on::<Plain>().on::<Synced>().run();
}
