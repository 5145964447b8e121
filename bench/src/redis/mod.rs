//! What the rows about Redis share: a server, connections without our library, and what the server
//! tells of itself.

mod monitor;
mod replay;

use std::sync::Arc;
use std::time::Duration;

use holdtight::DistributedLock;
use holdtight_testkit::servers::Redis;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;

pub(crate) use monitor::Monitor;
pub(crate) use replay::Replay;

use crate::{Failure, load};

/// A Redis of our own, and a runtime to use it from.
#[derive(Clone)]
pub(crate) struct Stage {
    runtime: Arc<Runtime>,
    server: Arc<Redis>,
}

impl Stage {
    pub(crate) fn start() -> Result<Self, Failure> {
        let runtime = load::runtime()?;
        let server = Arc::new(runtime.block_on(Redis::start()));
        Ok(Self { runtime, server })
    }

    // Methods, because a closure that names a field keeps that field alive and not the server.
    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    pub(crate) fn server(&self) -> &Arc<Redis> {
        &self.server
    }

    /// Our library with its defaults.
    pub(crate) fn lock(&self) -> Result<DistributedLock, Failure> {
        Ok(self.runtime.block_on(holdtight::connect(self.server.url()))?)
    }

    /// The client that our library uses too, set up as our library does, and nothing above it.
    pub(crate) fn bare(&self) -> Result<MultiplexedConnection, Failure> {
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        let info = redis::Client::open(self.server.url())?.get_connection_info().clone();
        let client = redis::Client::open(info.set_tcp_settings(tcp))?;
        let settings = redis::AsyncConnectionConfig::new()
            .set_response_timeout(Some(Duration::from_secs(10)))
            .set_pipeline_buffer_size(4096);
        let open = client.get_multiplexed_async_connection_with_config(&settings);
        Ok(self.runtime.block_on(open)?)
    }

    /// Microseconds of CPU that the server has used.
    pub(crate) fn cpu_micros(&self) -> Result<f64, Failure> {
        let seconds = self.info("used_cpu_sys")? + self.info("used_cpu_user")?;
        Ok(seconds * 1e6)
    }

    /// One number of what the server tells of itself.
    pub(crate) fn info(&self, name: &str) -> Result<f64, Failure> {
        let info = self.runtime.block_on(self.server.command("INFO"))?;
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.ok_or_else(|| format!("INFO has no {name}"))?;
        Ok(value.trim().parse()?)
    }
}

/// The smallest lock there is: one command to take it, one to give it back, and no check whose it
/// is.
pub(crate) async fn bare_pair(
    mut connection: MultiplexedConnection,
    key: String,
) -> Result<(), Failure> {
    let mut set = redis::cmd("SET");
    set.arg(&key).arg("an owner of 22 characters").arg("NX").arg("PX").arg(30_000);
    let taken: Option<String> = set.query_async(&mut connection).await?;
    taken.ok_or("a key of its own was busy")?;
    redis::cmd("DEL").arg(&key).exec_async(&mut connection).await?;
    Ok(())
}
