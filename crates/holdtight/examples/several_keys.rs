//! Several keys at once: transfers between accounts, in all directions at the same time.
//!
//! Taking one lock and then the other deadlocks as soon as two transfers cross. `acquire_all` takes
//! all or none, in whatever order they are named; if one of them is lost, the work is stopped. Each
//! account checks its own fence.

use std::sync::Arc;

use holdtight::{DistributedLock, FencedRegister, Held, LockError};

const ACCOUNTS: usize = 4;
const TRANSFERS: usize = 60;

type Account = FencedRegister<i64>;

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let lock = holdtight::connect("memory:").await?;
    let accounts: Arc<Vec<Account>> = Arc::new((0..ACCOUNTS).map(|_| Account::new(100)).collect());
    let mut transfers = tokio::task::JoinSet::new();
    for number in 0..TRANSFERS {
        let (from, to) = (number % ACCOUNTS, (number * 3 + 1) % ACCOUNTS);
        if from != to {
            transfers.spawn(transfer(lock.clone(), Arc::clone(&accounts), from, to));
        }
    }
    let count = transfers.len();
    for transfer in transfers.join_all().await {
        transfer?;
    }
    let total: i64 = accounts.iter().map(Account::read).sum();
    assert_eq!(total, 400);
    println!("{count} transfers, and the sum is still {total}");
    lock.shutdown().await
}

async fn transfer(
    lock: DistributedLock,
    accounts: Arc<Vec<Account>>,
    from: usize,
    to: usize,
) -> Result<(), LockError> {
    let name = |account: usize| format!("account:{account}");
    lock.acquire_all([name(from), name(to)])
        .wait_forever()
        .run(async |held| {
            // The locks come sorted by key, so look for the one of each account.
            let fence = |account: usize| {
                let of_account = held.iter().find(|held| held.key().as_str() == name(account));
                of_account.map(Held::fence).expect("all of them are held")
            };
            // Both are read before either is written, under their fences: earlier holders are
            // refused from here on.
            let left = accounts[from].read_as(fence(from))? - 10;
            let right = accounts[to].read_as(fence(to))? + 10;
            tokio::task::yield_now().await;
            accounts[from].write(fence(from), |balance| *balance = left)?;
            accounts[to].write(fence(to), |balance| *balance = right)
        })
        .await?
}
