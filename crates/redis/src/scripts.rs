//! The Lua scripts, one per atomic step and layout, put together and hashed once per process.
//!
//! What each does, its KEYS, ARGV and answer stand at the top of its file under `scripts/`. The
//! shared functions it uses, from `scripts/lib/`, are put in front of it, because Lua in Redis has
//! no `require`; only those that it uses, because every call pays for them. For the same reason the
//! way of nearly every call of the native layout stands before them, in a file of its own.

use std::sync::LazyLock;

use crate::config::Layout;

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
    /// For callers who each want one lock; native only.
    pub(crate) each: Option<EachScripts>,
    /// Not in syncguard, whose locks have each a counter of their own.
    pub(crate) acquire_many: Option<Script>,
}

/// Steps that several callers share.
#[derive(Debug)]
pub(crate) struct EachScripts {
    pub(crate) acquire: Script,
    pub(crate) release: Script,
}

/// How a script announces: to the whole server, or within one shard of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announce {
    Server,
    Shard,
}

const CLOCK_DIGITS: &str = include_str!("scripts/lib/clock_digits.lua");
const CLOCK: &str = include_str!("scripts/lib/clock.lua");
const DECIMAL: &str = include_str!("scripts/lib/decimal.lua");
const MINT_AFTER: &str = include_str!("scripts/lib/mint.lua");
const MINT: &str =
    concat!(include_str!("scripts/lib/mint.lua"), include_str!("scripts/lib/mint_now.lua"));
const QUEUE: &str = include_str!("scripts/lib/queue.lua");
const READ: &str = include_str!("scripts/lib/read.lua");
const RECORD: &str = include_str!("scripts/lib/record.lua");
const BESIDE: &str = include_str!("scripts/lib/beside.lua");
const SYNCGUARD: &str = include_str!("scripts/syncguard/lib.lua");
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

/// Finds names, in every layout.
pub(crate) static SCAN: LazyLock<Script> =
    LazyLock::new(|| script("scan", Announce::Server, &[include_str!("scripts/scan.lua")]));

/// The one script that writes and is not a step of a lock: it belongs to no layout.
pub(crate) static FENCED_SET: LazyLock<Script> = LazyLock::new(|| {
    script("fenced_set", Announce::Server, &[include_str!("scripts/fenced_set.lua")])
});

macro_rules! body {
    ($layout:literal, $name:literal) => {
        include_str!(concat!("scripts/", $layout, "/", $name, ".lua"))
    };
}

const TAKE: &str = body!("native", "take");
const GIVE: &str = body!("native", "give");

fn native(announce: Announce) -> ScriptSet {
    let make = |name, parts: &[&str]| script(name, announce, parts);
    ScriptSet {
        acquire: make(
            "acquire",
            &[
                CLOCK_DIGITS,
                body!("native", "acquire_free"),
                DECIMAL,
                MINT_AFTER,
                READ,
                RECORD,
                LEASE,
                QUEUE,
                TAKE,
                body!("native", "acquire"),
            ],
        ),
        release: make(
            "release",
            &[body!("native", "release_quiet"), READ, WAKE, GIVE, body!("native", "release")],
        ),
        each: Some(EachScripts {
            acquire: make(
                "acquire_each",
                &[
                    CLOCK_DIGITS,
                    DECIMAL,
                    MINT_AFTER,
                    body!("native", "acquire_each_free"),
                    READ,
                    RECORD,
                    LEASE,
                    QUEUE,
                    TAKE,
                    body!("native", "acquire_each"),
                ],
            ),
            release: make(
                "release_each",
                &[
                    body!("native", "release_each_quiet"),
                    READ,
                    WAKE,
                    GIVE,
                    body!("native", "release_each"),
                ],
            ),
        }),
        extend: make("extend", &[DECIMAL, READ, RECORD, LEASE, body!("native", "extend")]),
        transfer: make(
            "transfer",
            &[
                CLOCK_DIGITS,
                body!("native", "transfer_quick"),
                DECIMAL,
                MINT_AFTER,
                READ,
                body!("native", "transfer"),
            ],
        ),
        lookup: make("lookup", &[CLOCK, DECIMAL, READ, RECORD, body!("native", "lookup")]),
        force_release: make(
            "force_release",
            &[READ, RECORD, WAKE, body!("native", "force_release")],
        ),
        acquire_many: Some(make(
            "acquire_many",
            &[CLOCK, DECIMAL, MINT, READ, RECORD, LEASE, body!("native", "acquire_many")],
        )),
    }
}

fn token(announce: Announce) -> ScriptSet {
    let make = |name, parts: &[&str]| script(name, announce, parts);
    ScriptSet {
        acquire: make(
            "acquire",
            &[CLOCK, DECIMAL, MINT, READ, RECORD, LEASE, BESIDE, QUEUE, body!("token", "acquire")],
        ),
        release: make("release", &[READ, WAKE, body!("token", "release")]),
        extend: make(
            "extend",
            &[CLOCK, DECIMAL, MINT, READ, RECORD, LEASE, BESIDE, body!("token", "extend")],
        ),
        transfer: make(
            "transfer",
            &[CLOCK, DECIMAL, MINT, READ, BESIDE, body!("token", "transfer")],
        ),
        lookup: make("lookup", &[CLOCK, DECIMAL, READ, RECORD, body!("token", "lookup")]),
        force_release: make(
            "force_release",
            &[READ, RECORD, WAKE, body!("token", "force_release")],
        ),
        each: None,
        acquire_many: Some(make(
            "acquire_many",
            &[CLOCK, DECIMAL, MINT, READ, RECORD, LEASE, BESIDE, body!("token", "acquire_many")],
        )),
    }
}

fn syncguard(announce: Announce) -> ScriptSet {
    let make = |name, parts: &[&str]| script(name, announce, parts);
    let full = [CLOCK, DECIMAL, READ, SYNCGUARD];
    ScriptSet {
        acquire: make(
            "acquire",
            &[CLOCK, DECIMAL, READ, SYNCGUARD, QUEUE, body!("syncguard", "acquire")],
        ),
        release: make("release", &[CLOCK, READ, SYNCGUARD, WAKE, body!("syncguard", "release")]),
        extend: make("extend", &[&full[..], &[body!("syncguard", "extend")]].concat()),
        transfer: make("transfer", &[CLOCK, READ, SYNCGUARD, body!("syncguard", "transfer")]),
        lookup: make("lookup", &[&full[..], &[body!("syncguard", "lookup")]].concat()),
        force_release: make(
            "force_release",
            &[READ, SYNCGUARD, WAKE, body!("syncguard", "force_release")],
        ),
        each: None,
        acquire_many: None,
    }
}

/// The scripts of a layout.
pub(crate) fn set(layout: Layout, announce: Announce) -> &'static ScriptSet {
    type Sets = LazyLock<[ScriptSet; 3]>;
    fn make(announce: Announce) -> [ScriptSet; 3] {
        [native(announce), token(announce), syncguard(announce)]
    }
    static SERVER: Sets = LazyLock::new(|| make(Announce::Server));
    static SHARD: Sets = LazyLock::new(|| make(Announce::Shard));
    let sets = match announce {
        Announce::Server => &SERVER,
        Announce::Shard => &SHARD,
    };
    match layout {
        Layout::Native => &sets[0],
        Layout::Token => &sets[1],
        Layout::Syncguard => &sets[2],
    }
}
