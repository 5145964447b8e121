//! Threads that use the blocking face and tasks that use the other one want the same keys: one history, and nothing in
//! it that cannot be.

use std::thread;
use std::time::Duration;

use holdtight::blocking::{self, LockHandle};
use holdtight::{DistributedLock, ErrorKind};
use holdtight_testkit::history::{
    Claim, Form, Holding, LetGo, Load, Patience, Recorder, Refusal, Rules, check,
};

const TTL: Duration = Duration::from_secs(5);

fn granted(claim: Claim, handle: &LockHandle) -> Holding {
    let held = handle.held().clone();
    claim.granted_as(handle.fence(), move || held.remaining())
}

/// One thread, until there are enough grants.
fn play(lock: &blocking::DistributedLock, recorder: &Recorder, seed: u64, enough: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    while recorder.grants() < enough {
        let key = format!("load:{}", random.u8(..2));
        let endless = random.bool();
        let patience = if endless { Patience::Endless } else { Patience::Limited };
        let acquire = lock.acquire(&key).ttl(TTL);
        let wait = Duration::from_millis(random.u64(1..20));
        let acquire = if endless { acquire.wait_forever() } else { acquire.wait(wait) };
        let claim = recorder.ask(&key, Form::Other, patience);
        if random.bool() {
            work(acquire, claim);
            continue;
        }
        match acquire.get() {
            Ok(handle) => {
                let holding = granted(claim, &handle);
                thread::sleep(Duration::from_micros(random.u64(..1000)));
                if random.bool() {
                    drop((holding, handle));
                } else {
                    let parting = holding.letting_go(LetGo::Release);
                    parting.done(&handle.release());
                }
            }
            Err(error) => claim.failed(&error),
        }
    }
}

/// Work under the lock, in the blocking way.
fn work(acquire: blocking::Acquire, claim: Claim) {
    let mut claim = Some(claim);
    let result = acquire.run(|held| {
        let watched = held.clone();
        let claim = claim.take().expect("work begins once");
        let holding = claim.granted_as(held.fence(), move || watched.remaining());
        thread::sleep(Duration::from_micros(300));
        holding.letting_go(LetGo::Work)
    });
    match (result, claim) {
        (Ok(parting), _) => parting.worked(&Ok(())),
        (Err(error), Some(claim)) if error.kind() == ErrorKind::Timeout => {
            claim.refused(Refusal::Timeout);
        }
        (Err(error), Some(claim)) => claim.failed(&error),
        // Its lock was lost, and it was told so.
        (Err(_), None) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_and_tasks_share_keys_without_two_holders() {
    let (seed, enough) = (fastrand::u64(..), 600);
    // One store of this process, by its name.
    let store = "memory:blocking-load";
    let lock = DistributedLock::connect(store).await.unwrap();
    let blocking =
        tokio::task::block_in_place(|| blocking::DistributedLock::connect(store)).unwrap();
    let recorder = Recorder::new(format!("blocking, seed {seed}"));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let (lock, recorder) = (blocking.clone(), recorder.clone());
            thread::spawn(move || play(&lock, &recorder, seed.wrapping_add(n), enough))
        })
        .collect();
    let load = Load::rush(seed).tasks(6).keys(2).grants(enough).limit(Duration::from_secs(60));
    load.run(std::slice::from_ref(&*lock), &recorder).await;
    tokio::task::block_in_place(|| {
        for thread in threads {
            thread.join().unwrap();
        }
    });
    load.settle(&lock, &recorder).await;
    let report = check(&recorder.history(), Rules::CALM);
    report.assert_clean(&[
        ("grants", report.counts.grants),
        ("hand-overs", report.counts.hand_overs),
    ]);
}
