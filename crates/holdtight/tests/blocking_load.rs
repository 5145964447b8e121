//! Threads that use the blocking face and tasks that use the other one want the same keys: one
//! history, and nothing in it that cannot be.

use std::thread;
use std::time::Duration;

use holdtight::blocking::{self, Held, LockHandle};
use holdtight::{ErrorKind, LockError};
use holdtight_testkit::history::{
    Claim, Form, Holding, LetGo, Load, Patience, Recorder, Refusal, Rules, check,
};

/// A lock that is forgotten does not come back by itself.
const TTL: Duration = Duration::from_secs(600);

fn granted(claim: Claim, held: &Held) -> Holding {
    let watched = held.clone();
    claim.granted_as(held.fence(), move || watched.remaining())
}

/// One thread, until there are enough grants.
fn play(lock: &blocking::DistributedLock, recorder: &Recorder, seed: u64, enough: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut step = usize::try_from(seed % 8).unwrap();
    while recorder.grants() < enough {
        let key = format!("load:{}", random.u8(..2));
        let endless = random.bool();
        let patience = if endless { Patience::Endless } else { Patience::Limited };
        let acquire = lock.acquire(&key).ttl(TTL);
        let wait = Duration::from_millis(random.u64(1..20));
        let acquire = if endless { acquire.wait_forever() } else { acquire.wait(wait) };
        let ask = |patience| recorder.ask(&key, Form::Other, patience);
        step += 1;
        match step % 8 {
            0 | 1 => hold(ask(patience), acquire.get(), random.bool()),
            2 | 3 => work(acquire, ask(patience)),
            4 => {
                let claim = ask(Patience::Limited);
                match lock.try_acquire(&key).ttl(TTL).get().transpose() {
                    Some(handle) => hold(claim, handle, random.bool()),
                    None => claim.refused(Refusal::Busy),
                }
            }
            5 => both(lock, recorder),
            6 => lead(lock, &key, ask(Patience::Endless)),
            _ => pass_on(lock, recorder, &key, ask(patience), acquire.get()),
        }
    }
}

/// Holds for a moment and lets go.
fn hold(claim: Claim, handle: Result<LockHandle, LockError>, drops: bool) {
    let handle = match handle {
        Ok(handle) => handle,
        Err(error) => return claim.failed(&error),
    };
    let holding = granted(claim, handle.held());
    thread::sleep(Duration::from_micros(300));
    if drops {
        drop((holding, handle));
    } else {
        let parting = holding.letting_go(LetGo::Release);
        parting.done(&handle.release());
    }
}

/// Two keys at once.
fn both(lock: &blocking::DistributedLock, recorder: &Recorder) {
    let keys = ["load:0", "load:1"];
    let claims = keys.map(|key| recorder.ask(key, Form::Other, Patience::Endless));
    match lock.acquire_all(keys).ttl(TTL).wait_forever().get() {
        Ok(set) => {
            // Both are sorted.
            let holdings: Vec<_> = claims
                .into_iter()
                .zip(set.held())
                .map(|(claim, held)| granted(claim, &held))
                .collect();
            thread::sleep(Duration::from_micros(300));
            let partings: Vec<_> =
                holdings.into_iter().map(|holding| holding.letting_go(LetGo::Release)).collect();
            let released = set.release();
            for parting in &partings {
                parting.done(&released);
            }
        }
        Err(error) => claims.into_iter().for_each(|claim| claim.failed(&error)),
    }
}

/// Be elected, and step down.
fn lead(lock: &blocking::DistributedLock, key: &str, claim: Claim) {
    match lock.election(key).ttl(TTL).campaign() {
        Ok(leadership) => {
            let holding = granted(claim, leadership.held());
            thread::sleep(Duration::from_micros(300));
            let parting = holding.letting_go(LetGo::Release);
            parting.done(&leadership.step_down());
        }
        Err(error) => claim.failed(&error),
    }
}

/// Two want to go on with one token: one of them does.
fn pass_on(
    lock: &blocking::DistributedLock,
    recorder: &Recorder,
    key: &str,
    claim: Claim,
    handle: Result<LockHandle, LockError>,
) {
    let handle = match handle {
        Ok(handle) => handle,
        Err(error) => return claim.failed(&error),
    };
    let parting = granted(claim, handle.held()).letting_go(LetGo::Detach);
    let detached = handle.detach();
    parting.done(&detached);
    let Ok(token) = detached else { return };
    thread::scope(|both| {
        for _ in 0..2 {
            both.spawn(|| {
                let claim = recorder.ask(key, Form::Resume, Patience::Limited);
                hold(claim, lock.resume_for(token.clone(), TTL), false);
            });
        }
    });
}

/// Work under the lock, in the blocking way.
fn work(acquire: blocking::Acquire, claim: Claim) {
    let mut claim = Some(claim);
    let result = acquire.run(|held| {
        let holding = granted(claim.take().expect("work begins once"), held);
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
    // One store of this process, by its name.
    share("memory:blocking-load").await;
}

#[cfg(feature = "file")]
#[tokio::test(flavor = "multi_thread")]
async fn threads_and_tasks_share_keys_in_files_without_two_holders() {
    let place = tempfile::tempdir().unwrap();
    share(&format!("file:{}", place.path().join("locks").display())).await;
}

async fn share(store: &str) {
    let (seed, enough) = (fastrand::u64(..), 600);
    let lock = holdtight::connect(store).await.unwrap();
    let blocking = tokio::task::block_in_place(|| blocking::connect(store)).unwrap();
    let recorder = Recorder::new(format!("blocking, {store}, seed {seed}"));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let (lock, recorder) = (blocking.clone(), recorder.clone());
            thread::spawn(move || play(&lock, &recorder, seed.wrapping_add(n), enough))
        })
        .collect();
    let load = Load::rush(seed).tasks(6).keys(2).ttl(TTL);
    let load = load.grants(enough).limit(Duration::from_secs(60));
    load.run(std::slice::from_ref(&lock), &recorder).await;
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
