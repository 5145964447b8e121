//! An administrator's last resort: frees a key whoever holds it, but only the grant that was looked
//! at.

use std::sync::Arc;

use holdtight_core::{ExtendBy, Extension, Fence, Key, Release};

use super::case::{Case, cases};
use super::stage::Stage;

pub(super) const CASES: &[Case] = cases![if ForceRelease;
    the_shown_fence_frees_the_key,
    another_fence_frees_nothing,
    a_fence_from_before_frees_nothing,
];

async fn force(stage: &Stage, key: &Key, fence: Fence) -> Release {
    Arc::clone(&stage.store).force_release(key.clone(), fence).await.unwrap()
}

async fn the_shown_fence_frees_the_key(stage: &Stage) {
    let key = stage.key("force");
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    let shown =
        stage.lookup(&key).await.expect("held").fence.expect("force_release needs it shown");
    assert_eq!(shown, lease.fence);
    assert_eq!(force(stage, &key, shown).await, Release::Released);
    assert!(stage.lookup(&key).await.is_none());
    let moved = stage.extend(&key, &owner, ExtendBy::AtLeast(stage.long())).await;
    assert_eq!(moved, Extension::NotHeld, "the owner has lost it");
    assert_eq!(stage.release(&key, &owner).await, Release::NotHeld);
    let (_, next) = stage.taken(&key, stage.long()).await;
    assert!(next.fence > lease.fence, "a fence is never lowered");
}

async fn another_fence_frees_nothing(stage: &Stage) {
    let (key, free) = (stage.key("force"), stage.key("force:free"));
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    let number = lease.fence.get();
    for wrong in [number.wrapping_sub(1), number.wrapping_add(1), 0, u64::MAX] {
        assert_eq!(force(stage, &key, Fence::new(wrong)).await, Release::NotHeld, "{wrong}");
    }
    assert_eq!(force(stage, &free, lease.fence).await, Release::NotHeld, "nobody holds it");
    stage.must_be_held(&key, &owner, lease.fence).await;
    stage.must_be_free(&free).await;
}

async fn a_fence_from_before_frees_nothing(stage: &Stage) {
    let key = stage.key("force");
    let (first, old) = stage.taken(&key, stage.long()).await;
    assert_eq!(stage.release(&key, &first).await, Release::Released);
    assert_eq!(force(stage, &key, old.fence).await, Release::NotHeld);
    let (next, lease) = stage.taken(&key, stage.long()).await;
    assert_eq!(force(stage, &key, old.fence).await, Release::NotHeld);
    stage.must_be_held(&key, &next, lease.fence).await;
}
