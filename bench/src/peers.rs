//! The locks that a user could choose instead, each driven by a small program of ours under
//! `bench/peers`.
//!
//! `cargo xtask bench` installs them into a cache outside the repository and names it in
//! `HOLDTIGHT_PEERS`. A peer that is not there is absent from the table, which says so.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driven::{Driven, Pairs};
use crate::redis::Stage;
use crate::{Comparison, Contender, Effort, Failure, Role};

pub(crate) const RSLOCK: &str = "rslock";
pub(crate) const DISTRIBUTED_LOCK: &str = "distributed-lock";
pub(crate) const REDLOCK: &str = "redlock";
pub(crate) const SESAMECARE: &str = "@sesamecare-oss/redlock";
pub(crate) const SEMAPHORE: &str = "redis-semaphore";
pub(crate) const REDIS_PY: &str = "redis-py";
pub(crate) const PYTHON_REDIS_LOCK: &str = "python-redis-lock";

/// All peers on Redis.
pub(crate) const ALL: [&str; 7] =
    [RSLOCK, DISTRIBUTED_LOCK, REDLOCK, SESAMECARE, SEMAPHORE, REDIS_PY, PYTHON_REDIS_LOCK];

/// Those in Node and Python.
pub(crate) const SCRIPTED: &[&str] = &[REDLOCK, SESAMECARE, SEMAPHORE, REDIS_PY, PYTHON_REDIS_LOCK];

const NOT_INSTALLED: &str = "not installed: `cargo xtask bench` does it";

/// One peer, started when it is first needed.
pub(crate) struct Peer {
    name: &'static str,
    stage: Stage,
    process: Option<Driven>,
}

impl Peer {
    pub(crate) fn new(name: &'static str, stage: &Stage) -> Self {
        Self { name, stage: stage.clone(), process: None }
    }

    /// Whether it needs so much longer that it is given less to do.
    pub(crate) fn is_slow(&self) -> bool {
        SCRIPTED.contains(&self.name)
    }

    pub(crate) fn pairs(&mut self, tasks: u64, each: u64) -> Result<Pairs, Failure> {
        self.process()?.pairs(tasks, each)
    }

    fn process(&mut self) -> Result<&mut Driven, Failure> {
        if self.process.is_none() {
            let command = command(self.name, self.stage.server().port());
            self.process = Some(Driven::start(&mut command.ok_or("is not installed")?)?);
        }
        self.process.as_mut().ok_or_else(|| "is not running".into())
    }
}

/// The program of ours that drives `name`; `None` if it is not installed.
pub(crate) fn command(name: &str, port: u16) -> Option<Command> {
    let cache = PathBuf::from(std::env::var_os("HOLDTIGHT_PEERS")?);
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let (mut command, modules) = match name {
        RSLOCK | DISTRIBUTED_LOCK => {
            let program = cache.join("rust/bin/holdtight-bench-peers");
            (Command::new(&program), program)
        }
        REDIS_PY | PYTHON_REDIS_LOCK => {
            let mut command = Command::new("python3");
            command.arg(programs.join("python/peer.py"));
            (command, cache.join("python"))
        }
        _ => {
            let mut command = Command::new("node");
            command.arg(programs.join("node/peer.mjs"));
            (command, cache.join("node"))
        }
    };
    let installed = modules.exists();
    command.arg(name).arg(port.to_string()).arg(modules);
    installed.then_some(command)
}

/// Adds those of `names` that are installed, and names the others as absent.
pub(crate) fn join(
    comparison: Comparison,
    stage: &Stage,
    names: &[&'static str],
    round: impl Fn(&mut Peer, Effort) -> Result<f64, Failure> + Clone + 'static,
) -> Comparison {
    names.iter().fold(comparison, |comparison, &name| {
        if command(name, 0).is_none() {
            return comparison.without(name, NOT_INSTALLED);
        }
        let (mut peer, round) = (Peer::new(name, stage), round.clone());
        comparison.against(Contender::new(name, Role::Peer, move |effort| round(&mut peer, effort)))
    })
}

/// The same for contenders that need more than one process, or report more than one number: `start`
/// is called for each of them when the comparison is made, and what it gives for each round.
pub(crate) fn join_several<R>(
    comparison: Comparison,
    names: &[&'static str],
    start: impl Fn(&'static str) -> R,
) -> Comparison
where
    R: FnMut(Effort) -> Result<Vec<f64>, Failure> + 'static,
{
    names.iter().fold(comparison, |comparison, &name| {
        if command(name, 0).is_none() {
            return comparison.without(name, NOT_INSTALLED);
        }
        comparison.against(Contender::of_several(name, Role::Peer, start(name)))
    })
}
