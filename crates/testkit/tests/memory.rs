//! The suite on the store that needs nothing, plain and behind a network that is slow in random
//! places.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Backend, BootClock, ManualClock, MemoryStore};
use holdtight_testkit::conformance::Suite;
use holdtight_testkit::{Chaos, Fault, Fixture};

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

/// The same, with delays that make calls overtake each other.
struct Slow(Memory);

impl Fixture for Slow {
    const NAME: &'static str = "memory-slow";

    async fn start() -> Self {
        Self(Memory::start().await)
    }

    async fn open(&self) -> Arc<dyn Backend> {
        let chaos = Chaos::around(self.0.open().await);
        let (short, long) = (Duration::from_micros(200), Duration::from_millis(2));
        let slow = [short, long].map(|delay| [Fault::SlowRequest(delay), Fault::SlowReply(delay)]);
        chaos.random(fastrand::u64(..), 300, slow.as_flattened());
        chaos
    }

    fn clock(&self) -> Option<ManualClock> {
        self.0.clock()
    }
}

fn main() {
    // A call that cannot wait cannot be slowed down either: the wrapper answers "cannot" now and
    // then.
    let inapplicable = "memory-slow::ownership::a_release_without_waiting_is_a_release";
    Suite::new().on::<Memory>().on::<Slow>().without(inapplicable).run();
}
