//! The suite on the store that needs nothing.

use std::sync::Arc;

use holdtight_core::{Backend, BootClock, ManualClock, MemoryStore};
use holdtight_testkit::{Fixture, conformance};

struct Memory {
    store: Arc<MemoryStore>,
    clock: ManualClock,
}

impl Fixture for Memory {
    const NAME: &'static str = "memory";

    async fn start() -> Self {
        let clock = ManualClock::over(BootClock);
        Self { store: Arc::new(MemoryStore::with_clock(clock.clone())), clock }
    }

    async fn open(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.store) as Arc<dyn Backend>
    }

    fn clock(&self) -> Option<ManualClock> {
        Some(self.clock.clone())
    }
}

fn main() {
    conformance::run::<Memory>();
}
