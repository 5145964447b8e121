//! Keys are told apart byte by byte, whatever stands in them, up to the longest.

use std::collections::BTreeSet;

use holdtight_core::{Key, Release};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] =
    cases![every_legal_key_is_a_lock_of_its_own, long_keys_that_differ_at_the_end_are_different,];

/// Names that some store, file system, query language or pattern might treat as something else.
const TRICKY: &[&str] = &[
    "user:123",
    "user:12",
    "user:1234",
    "USER:123",
    "user:123 ",
    " user:123",
    "user::123",
    "a",
    "A",
    "b",
    "aa",
    "a/b",
    "a//b",
    "/a",
    "a/",
    ".",
    "..",
    "../a",
    "~",
    "-",
    "--help",
    "a.lock",
    "con",
    "nul",
    "{tag}key",
    "{tag}key2",
    "}{",
    "{}",
    "*",
    "?",
    "[a]",
    "a*",
    "a?",
    "\\",
    "\\*",
    "%",
    "%00",
    "%41",
    "_",
    "a_b",
    "a%b",
    "'",
    "''",
    "\"",
    ";--",
    "$1",
    "`id`",
    "a\u{a0}b",
    "a b",
    "a+b",
    "a&b",
    "a=b",
    "a#b",
    "a:b",
    "é",
    "e",
    "ё",
    "е",
    "🔒",
    "🔒🔒",
    "锁",
    "鍵",
    "ﬁ",
    "fi",
    "İ",
    "ı",
    "i",
    "I",
    "ß",
    "ss",
    "Ω",
    "\u{200b}",
    "\u{feff}x",
    "x",
    "\u{202e}x",
    "\u{10ffff}",
    "__x__",
    "null",
    "0",
    "-1",
];

async fn every_legal_key_is_a_lock_of_its_own(stage: &Stage) {
    // Normalising may make two of them one; a set says which are left.
    let keys: BTreeSet<Key> = TRICKY.iter().map(|text| stage.key(text)).collect();
    own_locks(stage, keys.into_iter().collect()).await;
}

async fn long_keys_that_differ_at_the_end_are_different(stage: &Stage) {
    let filler = "é".repeat(Key::MAX_BYTES / 2);
    let long = |end: &str| {
        let end_at = (Key::MAX_BYTES - end.len()) / 2 * 2;
        stage.key(&format!("{}{end}", &filler[..end_at]))
    };
    let keys = vec![long(""), long("ab"), long("ac"), long("abcd"), stage.key(&filler[..256])];
    assert_eq!(keys[0].as_str().len(), Key::MAX_BYTES);
    own_locks(stage, keys).await;
}

/// All held at once by different owners; then each freed without touching the rest.
async fn own_locks(stage: &Stage, keys: Vec<Key>) {
    let mut held = Vec::new();
    for key in keys {
        let owner = secret();
        let lease = stage.granted(&key, &owner, stage.long()).await;
        held.push((key, owner, lease));
    }
    for (key, _, lease) in &held {
        let shown = stage.lookup(key).await;
        let shown = shown.unwrap_or_else(|| panic!("{key:?} is held, but lookup says it is free"));
        assert_eq!(shown.key, *key, "lookup must name the key as it was given");
        stage.must_show(&shown, lease.fence);
    }
    while let Some((key, owner, _)) = held.pop() {
        assert_eq!(stage.release(&key, &owner).await, Release::Released, "{key:?}");
        assert!(stage.lookup(&key).await.is_none(), "{key:?} was released");
        if let Some((next, ..)) = held.last() {
            assert!(
                stage.lookup(next).await.is_some(),
                "{key:?} was released, and {next:?} with it"
            );
        }
    }
}
