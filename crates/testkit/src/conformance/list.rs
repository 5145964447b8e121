//! Listing shows what is held under a prefix, taken literally, and nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdtight_core::{Holder, Release};

use super::case::{Case, cases};
use super::stage::Stage;

pub(super) const CASES: &[Case] = cases![if List;
    a_list_shows_what_is_held_under_a_prefix,
    a_prefix_is_taken_literally,
    a_list_is_never_longer_than_its_limit,
    a_list_shows_no_lease_that_is_over,
    a_long_list_is_complete,
];

async fn list(stage: &Stage, prefix: &str, limit: usize) -> Vec<Holder> {
    Arc::clone(&stage.store).list(prefix.to_owned(), limit).await.unwrap()
}

async fn names(stage: &Stage, prefix: &str) -> BTreeSet<String> {
    let found = list(stage, prefix, 10_000).await;
    let names: BTreeSet<_> = found.iter().map(|holder| holder.key.as_str().to_owned()).collect();
    assert_eq!(names.len(), found.len(), "a key is listed once");
    names
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

async fn a_list_shows_what_is_held_under_a_prefix(stage: &Stage) {
    assert_eq!(names(stage, "").await, set(&[]), "a fresh store holds nothing");
    let mut held = Vec::new();
    for name in ["job:1", "job:2", "jobs", "job", "other:job:1"] {
        let key = stage.key(name);
        let (owner, lease) = stage.taken(&key, stage.long()).await;
        held.push((key, owner, lease));
    }
    assert_eq!(names(stage, "job:").await, set(&["job:1", "job:2"]));
    assert_eq!(names(stage, "job").await, set(&["job", "job:1", "job:2", "jobs"]));
    assert_eq!(names(stage, "").await.len(), 5, "an empty prefix is everything");
    assert_eq!(names(stage, "nothing").await, set(&[]));
    for shown in list(stage, "", 100).await {
        let (.., lease) = held.iter().find(|(key, ..)| *key == shown.key).expect("ours");
        stage.must_show(&shown, lease.fence);
    }
    assert_eq!(stage.release(&held[0].0, &held[0].1).await, Release::Released);
    assert_eq!(names(stage, "job:").await, set(&["job:2"]), "a released lock is not listed");
    let other = stage.open().await;
    let found = other.list("job:".to_owned(), 100).await.unwrap();
    assert_eq!(found.len(), 1, "every client sees the same: {found:?}");
}

async fn a_prefix_is_taken_literally(stage: &Stage) {
    let all = ["a*b", "axb", "a?b", "a[b", "a%b", "a_b", "a\\b", "é:1", "É:1", "a'b", "ab", "A*b"];
    for name in all {
        stage.taken(&stage.key(name), stage.long()).await;
    }
    for name in all {
        let prefix: String = name.chars().take(2).collect();
        let wanted: BTreeSet<_> = all
            .iter()
            .filter(|name| name.starts_with(&prefix))
            .map(|&name| name.to_owned())
            .collect();
        assert_eq!(names(stage, &prefix).await, wanted, "prefix {prefix:?}");
    }
}

async fn a_list_is_never_longer_than_its_limit(stage: &Stage) {
    for n in 0..10 {
        stage.taken(&stage.key(&format!("list:{n}")), stage.long()).await;
    }
    for limit in [0, 1, 3, 10, 11] {
        let found = list(stage, "list:", limit).await;
        assert_eq!(found.len(), limit.min(10), "limit {limit}");
    }
}

async fn a_list_shows_no_lease_that_is_over(stage: &Stage) {
    let (over, held) = (stage.key("list:over"), stage.key("list:held"));
    stage.taken(&over, stage.short()).await;
    stage.taken(&held, stage.long()).await;
    stage.expire(&over, stage.short()).await;
    assert_eq!(names(stage, "list:").await, set(&["list:held"]));
    // Neither does one that is over use up the limit.
    stage.taken(&stage.key("list:a"), stage.long()).await;
    assert_eq!(list(stage, "list:", 2).await.len(), 2);
}

async fn a_long_list_is_complete(stage: &Stage) {
    // More than one page of any store that reads in pages.
    let wanted: BTreeSet<_> = (0..400).map(|n| format!("list:{n}")).collect();
    for name in &wanted {
        stage.taken(&stage.key(name), stage.long()).await;
    }
    assert_eq!(names(stage, "list:").await, wanted);
}
