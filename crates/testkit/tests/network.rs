//! The trials of a broken network, under test: a careful client passes them all, each careless one
//! fails its own.

mod remote;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Backend, MemoryStore};
use holdtight_testkit::conformance::{Outcome, Suite};
use holdtight_testkit::{Fixture, Proxy};
use remote::{Carelessness, Remote, Server};

/// Each way to be careless, and the trial that must turn red.
const CLIENTS: &[(Carelessness, &str)] = &[
    (Carelessness::CallsTheUnknownUndone, "a_grant_whose_reply_was_lost_is_not_called_undone"),
    (Carelessness::CallsTheUnknownUndone, "a_release_whose_reply_was_lost_is_not_called_undone"),
    (Carelessness::CallsTheUnknownUndone, "an_extension_whose_reply_was_lost_is_not_called_undone"),
    (Carelessness::CallsTheUnknownUndone, "a_grant_cut_off_on_its_way_is_not_called_undone"),
    (Carelessness::WaitsForEver, "every_call_into_a_black_hole_ends"),
    (Carelessness::AsksAgainByItself, "a_release_cut_off_on_its_way_is_not_called_somebody_elses"),
    (Carelessness::StaysDown, "a_server_that_is_gone_is_an_error_and_its_return_is_noticed"),
    (Carelessness::TrustsOneRead, "single_bytes_are_put_together"),
];

struct Client<const N: usize> {
    inner: Arc<MemoryStore>,
    server: Server,
    proxy: Proxy,
}

impl<const N: usize> Fixture for Client<N> {
    const NAME: &'static str = "remote";

    async fn start() -> Self {
        let server = Server::start().await;
        let proxy = Proxy::to(server.address).await.unwrap();
        Self { inner: Arc::new(MemoryStore::new()), server, proxy }
    }

    async fn open(&self) -> Arc<dyn Backend> {
        let careless = CLIENTS.get(N).map_or(Carelessness::None, |(careless, _)| *careless);
        Remote::new(Arc::clone(&self.inner), &self.server, self.proxy.address(), careless)
    }

    fn proxy(&self) -> Option<Proxy> {
        Some(self.proxy.clone())
    }
}

#[test]
fn a_careful_client_passes() {
    let outcomes = Suite::new().on::<Client<{ usize::MAX }>>().only("::network::").outcomes();
    assert!(outcomes.len() >= 10);
    for (name, outcome) in outcomes {
        assert_eq!(outcome, Outcome::Passed, "{name}");
    }
}

#[test]
fn a_careless_client_fails_the_trial_made_for_it() {
    fn judge<const N: usize>() {
        let (careless, trial) = CLIENTS[N];
        let limit = Duration::from_secs(12);
        let outcomes = Suite::new().on::<Client<N>>().only(trial).time_limit(limit).outcomes();
        assert_eq!(outcomes.len(), 1, "{trial}");
        let failed = matches!(outcomes[0].1, Outcome::Failed(_));
        assert!(failed, "{careless:?} was not noticed by {trial}: {:?}", outcomes[0].1);
    }
    let all = [
        judge::<0>, judge::<1>, judge::<2>, judge::<3>, judge::<4>, judge::<5>, judge::<6>,
        judge::<7>,
    ];
    assert_eq!(all.len(), CLIENTS.len());
    std::thread::scope(|scope| {
        for judge in all {
            scope.spawn(judge);
        }
    });
}
