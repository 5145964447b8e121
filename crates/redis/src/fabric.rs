//! The way to the servers: one connection, or one per node of a cluster.

use std::sync::Arc;

use holdtight_core::LockError;
use redis::{Cmd, Pipeline, Value};

use crate::cluster::{Cluster, Load};
use crate::connection::{Fault, Link};
use crate::slots::slot;

/// Where requests go.
pub(crate) enum Fabric {
    /// Always the same server. If steps wait for replicas they have a connection of their own,
    /// where nothing can pass them: messages and questions do not wait with them, but a release
    /// never overtakes its grant.
    Single { link: Arc<Link>, steps: Arc<Link> },
    /// The node that serves the key.
    Cluster(Arc<Cluster>),
}

impl Fabric {
    /// Sends one command to the server of `lock`.
    pub(crate) async fn send(&self, lock: &str, command: &Cmd) -> Result<Value, Fault> {
        match self {
            Self::Single { steps, .. } => steps.send(command).await,
            Self::Cluster(cluster) => {
                let mut answers = cluster.send(slot(lock), Load::One(command)).await?;
                Ok(answers.pop().unwrap_or(Value::Nil))
            }
        }
    }

    /// Sends several commands at once to the server of `lock`; an error of the first is an error of
    /// all.
    pub(crate) async fn send_all(
        &self,
        lock: &str,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, Fault> {
        match self {
            Self::Single { steps, .. } => {
                let answers = steps.send_all(commands).await?;
                match answers.first() {
                    Some(Value::ServerError(error)) => Err(Fault::Sent(error.clone().into())),
                    _ => Ok(answers),
                }
            }
            Self::Cluster(cluster) => cluster.send(slot(lock), Load::Several(commands)).await,
        }
    }

    /// Whether messages about `lock` arrive; on a cluster this subscribes to its shard.
    pub(crate) async fn listens(&self, lock: &str, channel: &str) -> Result<bool, LockError> {
        match self {
            Self::Single { link, .. } => link.listens().await,
            Self::Cluster(cluster) => cluster.listen(slot(lock), channel).await,
        }
    }

    /// Whether messages about `lock` arrive now, as far as is known without asking.
    pub(crate) fn hears(&self, lock: &str, channel: &str) -> bool {
        match self {
            Self::Single { .. } => true,
            Self::Cluster(cluster) => cluster.hears(slot(lock), channel),
        }
    }

    /// Opens the connection that listens, if it is closed and no step would open it.
    pub(crate) fn mend(&self) {
        if let Self::Single { link, steps } = self
            && !Arc::ptr_eq(link, steps)
        {
            link.mend();
        }
    }

    /// What came from the server of `lock` last was not for us: nothing that comes on that
    /// connection is believed.
    pub(crate) fn distrust(&self, lock: &str) {
        match self {
            Self::Single { steps, .. } => steps.distrust(),
            Self::Cluster(cluster) => cluster.distrust(slot(lock)),
        }
    }

    /// The servers that hold locks.
    pub(crate) async fn primaries(&self) -> Result<Vec<Arc<Link>>, LockError> {
        match self {
            Self::Single { link, .. } => Ok(vec![Arc::clone(link)]),
            Self::Cluster(cluster) => cluster.primaries().await,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}
