//! Many callers of one store at once: their steps go out together, and each has its own answer.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, ErrorKind, Fence, Intent, Key, LockError, Owner, Release,
    Secret,
};
use holdtight_redis::RedisStore;
use holdtight_testkit::servers::Redis;
use support::{LONG, admin, busy, connect, count, granted, key, lookup, release, secret};

const COUNTER: &str = "\"holdtight:\\x01fence\"";
const CROWD: usize = 100;

/// Keys of a crowd, each with a secret.
fn wishes(prefix: &str) -> Vec<(Key, Secret)> {
    (0..CROWD).map(|n| (key(&format!("{prefix}{n}")), secret())).collect()
}

/// Runs all of them at once and returns what came of each, in order.
async fn at_once<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let running: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
    let mut answers = Vec::new();
    for call in running {
        answers.push(call.await.unwrap());
    }
    answers
}

async fn acquire_all(
    store: &Arc<RedisStore>,
    wishes: &[(Key, Secret)],
    intent: Intent,
) -> Vec<Result<Attempt, LockError>> {
    at_once(wishes.iter().cloned().map(|(key, secret)| {
        Arc::clone(store).acquire(AcquireRequest::new(key, secret, LONG).intent(intent))
    }))
    .await
}

async fn release_all(
    store: &Arc<RedisStore>,
    wishes: &[(Key, Secret)],
) -> Vec<Result<Release, LockError>> {
    at_once(wishes.iter().cloned().map(|(key, secret)| Arc::clone(store).release(key, secret)))
        .await
}

fn fence(answer: &Result<Attempt, LockError>) -> Fence {
    match answer {
        Ok(Attempt::Granted(lease)) => lease.fence,
        other => panic!("not granted: {other:?}"),
    }
}

/// How many scripts the server has run.
async fn scripts_run(server: &Redis) -> usize {
    let stats = admin(server, "INFO commandstats").await;
    let calls = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split(',').next()?.parse::<usize>().ok()).unwrap_or(0)
    };
    calls("cmdstat_evalsha:calls=") + calls("cmdstat_eval:calls=")
}

on_redis! {
    async fn a_crowd_shares_scripts_and_each_has_a_lock_and_a_fence_of_its_own(server: &Redis) {
        let store = connect(&server.url()).await;
        let wishes = wishes("k");
        for intent in [Intent::Try, Intent::Queue] {
            let before = scripts_run(server).await;
            let answers = acquire_all(&store, &wishes, intent).await;
            let fences: BTreeSet<Fence> = answers.iter().map(fence).collect();
            assert_eq!(fences.len(), CROWD, "no fence twice");
            assert!(scripts_run(server).await - before < CROWD, "nothing went together");
            for ((key, secret), answer) in wishes.iter().zip(&answers) {
                let value = admin(server, &format!("GET holdtight:{key}")).await;
                let beginning = format!("ht1 {} {} ", secret.expose(), fence(answer));
                assert!(value.contains(&beginning), "{value}");
                assert!(count(server, &format!("PTTL holdtight:{key}")).await > 0);
                assert_eq!(lookup(&store, key).await.unwrap().fence, Some(fence(answer)));
            }
            let counter = admin(server, &format!("GET {COUNTER}")).await;
            assert!(counter.contains(&fences.last().unwrap().to_string()), "{counter}");
            let (key, me) = (key("later"), secret());
            assert!(&granted(&store, &key, &me).await.fence > fences.last().unwrap());
            release(&store, &key, &me).await;
            let before = scripts_run(server).await;
            for answer in release_all(&store, &wishes).await {
                assert_eq!(answer.unwrap(), Release::Released);
            }
            assert!(scripts_run(server).await - before < CROWD, "nothing went together");
            assert_eq!(count(server, "DBSIZE").await, 1, "nothing stays but the counter");
            for answer in release_all(&store, &wishes).await {
                assert_eq!(answer.unwrap(), Release::NotHeld);
            }
        }
    }
}

on_redis! {
    async fn of_many_who_want_one_lock_one_gets_it_and_the_others_learn_who(server: &Redis) {
        let store = connect(&server.url()).await;
        let wishes: Vec<_> = (0..CROWD).map(|_| (key("one"), secret())).collect();
        let answers = acquire_all(&store, &wishes, Intent::Try).await;
        let mut held = Vec::new();
        for (wish, answer) in wishes.iter().zip(&answers) {
            match answer.as_ref().unwrap() {
                Attempt::Granted(lease) => held.push((wish.clone(), lease.fence)),
                Attempt::Busy(busy) => {
                    assert!(busy.holder.as_ref().unwrap().fence.is_some());
                }
                other => panic!("{other:?}"),
            }
        }
        let [(holder, fence)] = &held[..] else { panic!("{} hold it", held.len()) };
        // The holder is found under its secret, wherever it asks again.
        let again: Vec<_> = std::iter::repeat_n(holder.clone(), CROWD).collect();
        for answer in acquire_all(&store, &again, Intent::Try).await {
            assert_eq!(self::fence(&answer), *fence);
        }
        // Nobody else's release frees it.
        let others: Vec<_> = wishes.iter().filter(|wish| wish.1 != holder.1).cloned().collect();
        for answer in release_all(&store, &others).await {
            assert_eq!(answer.unwrap(), Release::NotHeld);
        }
        assert_eq!(lookup(&store, &holder.0).await.unwrap().fence, Some(*fence));
        assert_eq!(release(&store, &holder.0, &holder.1).await, Release::Released);
    }
}

on_redis! {
    async fn waiters_who_came_together_are_woken_each(server: &Redis) {
        let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
        let (held, waiting) = (wishes("k"), wishes("k"));
        for answer in acquire_all(&store, &held, Intent::Try).await {
            fence(&answer);
        }
        let mut bells = Vec::new();
        for (key, _) in &waiting {
            bells.push(Arc::clone(&other).subscribe(key.clone()).await.unwrap());
        }
        for answer in acquire_all(&other, &waiting, Intent::Queue).await {
            assert!(matches!(answer.unwrap(), Attempt::Busy(_)));
        }
        for answer in release_all(&store, &held).await {
            assert_eq!(answer.unwrap(), Release::Released);
        }
        for bell in &mut bells {
            tokio::time::timeout(support::PATIENCE, bell.heard()).await.unwrap();
        }
        for answer in acquire_all(&other, &waiting, Intent::Queue).await {
            fence(&answer);
        }
        for answer in release_all(&other, &waiting).await {
            assert_eq!(answer.unwrap(), Release::Released);
        }
        assert_eq!(count(server, "DBSIZE").await, 1, "no list of waiters stays");
    }
}

on_redis! {
    async fn what_fails_for_one_is_no_matter_to_the_others(server: &Redis) {
        admin(server, "ACL SETUSER ann on >pw allcommands ~holdtight:* &*").await;
        let store = connect(&format!("redis://ann:pw@127.0.0.1:{}", server.port())).await;
        // From now on keys of this user must begin with k; side keys stay.
        admin(server, "ACL SETUSER ann resetkeys ~holdtight:k* \"~holdtight:\\x01*\"").await;
        let mut wishes = wishes("k");
        for n in (0..CROWD).step_by(10) {
            wishes[n].0 = key(&format!("forbidden{n}"));
        }
        for n in (5..CROWD).step_by(10) {
            admin(server, &format!("HSET holdtight:k{n} a b")).await;
        }
        for (n, answer) in acquire_all(&store, &wishes, Intent::Try).await.into_iter().enumerate() {
            match n % 10 {
                0 => assert_eq!(answer.unwrap_err().kind(), ErrorKind::AuthFailed),
                5 => assert!(matches!(answer.unwrap(), Attempt::Busy(_))),
                _ => drop(fence(&answer)),
            }
        }
        for (n, answer) in release_all(&store, &wishes).await.into_iter().enumerate() {
            match n % 10 {
                0 => assert_eq!(answer.unwrap_err().kind(), ErrorKind::AuthFailed),
                5 => assert_eq!(answer.unwrap(), Release::NotHeld, "somebody else's"),
                _ => assert_eq!(answer.unwrap(), Release::Released),
            }
        }
        assert_eq!(count(server, "EXISTS holdtight:k5").await, 1);
    }
}

on_redis! {
    async fn a_crowd_mints_above_a_counter_that_is_ahead_and_stops_where_numbers_end(server: &Redis) {
        let store = connect(&server.url()).await;
        let wishes = wishes("k");
        admin(server, &format!("SET {COUNTER} 4000000000000000")).await;
        let answers = acquire_all(&store, &wishes, Intent::Try).await;
        let fences: BTreeSet<u64> = answers.iter().map(|answer| fence(answer).get()).collect();
        assert_eq!((fences.len(), *fences.first().unwrap()), (CROWD, 4_000_000_000_000_001));
        release_all(&store, &wishes).await;
        // Set back: the clock goes on. It is behind the counter above, and far beyond this one.
        admin(server, &format!("SET {COUNTER} 5")).await;
        let answers = acquire_all(&store, &wishes, Intent::Try).await;
        let fences: BTreeSet<u64> = answers.iter().map(|answer| fence(answer).get()).collect();
        assert_eq!(fences.len(), CROWD);
        assert!(*fences.first().unwrap() > 1_000_000_000_000_000, "{fences:?}");
        release_all(&store, &wishes).await;
        // Twenty numbers are left: nobody gets the same one, and the others are told.
        admin(server, &format!("SET {COUNTER} 9007199254740970")).await;
        let mut fences = BTreeSet::new();
        for answer in acquire_all(&store, &wishes, Intent::Try).await {
            match answer {
                Ok(Attempt::Granted(lease)) => assert!(fences.insert(lease.fence.get())),
                Ok(other) => panic!("{other:?}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Internal, "{error}"),
            }
        }
        assert_eq!((fences.len(), *fences.last().unwrap()), (20, 9_007_199_254_740_990));
    }
}

on_redis! {
    async fn different_leases_and_owners_are_kept_apart(server: &Redis) {
        let store = connect(&server.url()).await;
        let owner = |n: usize| Arc::new(Owner::from_text(&format!("host=h{} pid=1", n % 3)));
        let wishes = wishes("k");
        let answers = at_once(wishes.iter().cloned().enumerate().map(|(n, (key, secret))| {
            let ttl = LONG * if n % 2 == 0 { 1 } else { 10 };
            let mut request = AcquireRequest::new(key, secret, ttl);
            request.owner = owner(n);
            Arc::clone(&store).acquire(request)
        }))
        .await;
        for (n, ((key, _), answer)) in wishes.iter().zip(&answers).enumerate() {
            fence(answer);
            let holder = lookup(&store, key).await.unwrap();
            assert_eq!(holder.remaining.unwrap() > LONG, n % 2 == 1);
            assert_eq!(holder.owner, *owner(n));
        }
    }
}

on_redis! {
    async fn what_only_makes_a_crowd_fast_may_be_missing(server: &Redis) {
        admin(server, "ACL SETUSER ann on >pw allcommands -mget -exists ~* &*").await;
        let store = connect(&format!("redis://ann:pw@127.0.0.1:{}", server.port())).await;
        let wishes = wishes("k");
        for answer in acquire_all(&store, &wishes, Intent::Queue).await {
            fence(&answer);
        }
        busy(&store, &wishes[0].0, &secret(), Intent::Try).await;
        for answer in release_all(&store, &wishes).await {
            assert_eq!(answer.unwrap(), Release::Released);
        }
    }
}
