//! A PostgreSQL primary that dies, and a synchronous standby that takes its place.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use holdtight_testkit::servers::PostgresPair;

use super::{PACE, Promised, Run, Servers, pause};
use crate::Failure;

const PROMOTED: &str = "primaries killed and standbys promoted";
const ALONE: &str = "standbys killed";

pub(in super::super) fn standby(scale: f64) -> Result<String, Failure> {
    let runtime = crate::load::runtime()?;
    let pair = Arc::new(runtime.block_on(PostgresPair::start()));
    let url = pair.url();
    runtime.block_on(holdtight_postgres::migrate(&url))?;
    let brief = Duration::from_secs(1);
    Run { label: "pair", url, faults: 20, brief, promised: Promised::All, pace: PACE, scale }
        .play(&pair)
}

impl Servers for PostgresPair {
    fn kinds(&self) -> Vec<&'static str> {
        vec![PROMOTED, ALONE]
    }

    async fn strike(&self, kind: &'static str, random: &mut Rng) -> Result<(), Failure> {
        if kind == PROMOTED {
            self.fail_over();
            self.rebuild().await;
        } else {
            self.standby().process().kill();
            pause(random, 1000).await;
            self.standby().restart().await;
            self.wait_until_in_sync().await;
        }
        Ok(())
    }
}
