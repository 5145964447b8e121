//! The suite on the store of `examples/own_store.rs`, as its author would run it.

#[path = "../examples/own_store.rs"]
mod own_store;

use std::path::PathBuf;
use std::sync::Arc;

use holdtight_core::Backend;
use holdtight_testkit::{Fixture, conformance};
use own_store::Notebook;

/// A directory of its own for each trial.
struct Fresh(PathBuf);

impl Fixture for Fresh {
    const NAME: &'static str = "notebook";

    async fn start() -> Self {
        let name = format!("notebook-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        Self(directory)
    }

    async fn open(&self) -> Arc<dyn Backend> {
        Notebook::new(&self.0)
    }

    fn address(&self) -> Option<String> {
        Some(self.0.display().to_string())
    }

    async fn join(address: String) -> Arc<dyn Backend> {
        Notebook::new(address)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn main() {
    conformance::run::<Fresh>();
}
