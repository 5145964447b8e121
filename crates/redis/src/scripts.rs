//! The Lua scripts, one per atomic step and layout, put together and hashed once per process.
//!
//! What each does, its KEYS, ARGV and answer stand at the top of its file under `scripts/`. The shared functions
//! it uses, from `scripts/lib/`, are put in front of it, because Lua in Redis has no `require`; only those that it
//! uses, because every call pays for them.

use std::sync::LazyLock;

/// One script as it is sent.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) source: String,
    pub(crate) sha: String,
}

/// All steps of one layout.
#[derive(Debug)]
pub(crate) struct ScriptSet {
    pub(crate) acquire: Script,
    pub(crate) release: Script,
    pub(crate) extend: Script,
    pub(crate) transfer: Script,
    pub(crate) lookup: Script,
    pub(crate) force_release: Script,
    pub(crate) acquire_many: Script,
}

/// How a script announces: to the whole server, or within one shard of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announce {
    Server,
    Shard,
}

const CLOCK: &str = include_str!("scripts/lib/clock.lua");
const MINT: &str = include_str!("scripts/lib/mint.lua");
const RECORD: &str = include_str!("scripts/lib/record.lua");
const LEASE: &str = include_str!("scripts/lib/lease.lua");
const WAKE: &str = include_str!("scripts/lib/wake.lua");

fn script(name: &'static str, announce: Announce, parts: &[&str]) -> Script {
    let mut source = String::new();
    for part in parts {
        if *part == WAKE {
            source.push_str(match announce {
                Announce::Server => "local PUBLISH = 'PUBLISH'\n",
                Announce::Shard => "local PUBLISH = 'SPUBLISH'\n",
            });
        }
        source.push_str(part);
    }
    let sha = redis::Script::new(&source).get_hash().to_owned();
    Script { name, source, sha }
}

macro_rules! body {
    ($layout:literal, $name:literal) => {
        include_str!(concat!("scripts/", $layout, "/", $name, ".lua"))
    };
}

fn native_set(announce: Announce) -> ScriptSet {
    let make = |name, parts: &[&str]| script(name, announce, parts);
    ScriptSet {
        acquire: make("acquire", &[CLOCK, MINT, RECORD, LEASE, body!("native", "acquire")]),
        release: make("release", &[RECORD, WAKE, body!("native", "release")]),
        extend: make("extend", &[CLOCK, RECORD, LEASE, body!("native", "extend")]),
        transfer: make("transfer", &[CLOCK, MINT, RECORD, body!("native", "transfer")]),
        lookup: make("lookup", &[CLOCK, RECORD, body!("native", "lookup")]),
        force_release: make("force_release", &[RECORD, WAKE, body!("native", "force_release")]),
        acquire_many: make(
            "acquire_many",
            &[CLOCK, MINT, RECORD, LEASE, body!("native", "acquire_many")],
        ),
    }
}

/// The scripts of the native layout.
pub(crate) fn native(announce: Announce) -> &'static ScriptSet {
    static SERVER: LazyLock<ScriptSet> = LazyLock::new(|| native_set(Announce::Server));
    static SHARD: LazyLock<ScriptSet> = LazyLock::new(|| native_set(Announce::Shard));
    match announce {
        Announce::Server => &SERVER,
        Announce::Shard => &SHARD,
    }
}
