//! Several processes of one contender, put to work at once.

use std::process::Command;

use serde_json::{Value, json};

use crate::driven::{Driven, Hold};
use crate::stats::percentile;
use crate::{Failure, load};

pub(crate) struct Crew {
    members: Vec<Driven>,
}

impl Crew {
    /// Starts `count` processes by `command`, and waits until each has locked once, so that all are connected.
    pub(crate) fn start(
        count: u64,
        command: impl Fn() -> Result<Command, Failure>,
    ) -> Result<Self, Failure> {
        let members = (0..count).map(|_| Driven::start(&mut command()?));
        let mut crew = Self { members: members.collect::<Result<_, _>>()? };
        crew.ask(&json!({"op": "pairs", "tasks": 1, "each": 1}))?;
        Ok(crew)
    }

    /// Ourselves, on the store at `url`.
    pub(crate) fn ours(count: u64, url: &str) -> Result<Self, Failure> {
        Self::start(count, || {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["worker", url]);
            Ok(command)
        })
    }

    /// Asks all at once, and waits for all.
    pub(crate) fn ask(&mut self, request: &Value) -> Result<Vec<Value>, Failure> {
        let every = self.members.len();
        self.ask_each((0..every).map(|_| request.clone()))
    }

    fn ask_each(
        &mut self,
        requests: impl IntoIterator<Item = Value>,
    ) -> Result<Vec<Value>, Failure> {
        let mut asked = 0;
        for (member, request) in self.members.iter_mut().zip(requests) {
            member.tell(&request)?;
            asked += 1;
        }
        self.members[..asked].iter_mut().map(Driven::answer).collect()
    }

    /// Lets `waiters` in all, shared among the processes, hold `key` for a millisecond, `each` times.
    pub(crate) fn contend(
        &mut self,
        key: &str,
        waiters: u64,
        each: u64,
    ) -> Result<HandOffs, Failure> {
        let requests = self.shares(waiters).into_iter().map(|tasks| {
            json!({"op": "contend", "key": key, "tasks": tasks, "each": each, "hold_us": 1_000})
        });
        let mut holds: Vec<Hold> = Vec::new();
        for answer in self.ask_each(requests.collect::<Vec<_>>())? {
            let said = answer["holds"].as_array().ok_or("an answer without holds")?;
            for hold in said {
                let at = |place: usize| hold[place].as_u64().ok_or("a hold without its time");
                holds.push((at(0)?, at(1)?));
            }
        }
        HandOffs::of(holds, waiters)
    }

    /// Lets `waiters` in all, shared among the processes, wait for `key` from now on.
    pub(crate) fn wait(&mut self, key: &str, waiters: u64) -> Result<(), Failure> {
        let requests = self.shares(waiters).into_iter();
        let requests = requests.map(|tasks| json!({"op": "wait", "key": key, "tasks": tasks}));
        self.ask_each(requests.collect::<Vec<_>>())?;
        Ok(())
    }

    /// `whole` in as many nearly equal shares as there are members; none is empty.
    fn shares(&self, whole: u64) -> Vec<u64> {
        let count = self.members.len() as u64;
        let shares = (0..count).map(|n| whole / count + u64::from(n < whole % count));
        shares.filter(|share| *share > 0).collect()
    }
}

/// Times from a release to the next grant, in milliseconds.
#[derive(Debug)]
pub(crate) struct HandOffs {
    pub(crate) holds: u64,
    millis: Vec<f64>,
}

impl HandOffs {
    /// Takes the times between holds. The last holds, when some waiters are done, are left out: there the lock may
    /// only pass from a waiter to itself.
    fn of(mut holds: Vec<Hold>, waiters: u64) -> Result<Self, Failure> {
        holds.sort_unstable();
        let mut millis = Vec::new();
        for pair in holds.windows(2) {
            let ((_, released), (granted, _)) = (pair[0], pair[1]);
            if granted < released {
                return Err("two held the lock at once".into());
            }
            millis.push(load::number(granted - released) / 1e6);
        }
        let busy = millis.len().saturating_sub(usize::try_from(waiters)?).max(1);
        millis.truncate(busy);
        Ok(Self { holds: holds.len() as u64, millis })
    }

    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        percentile(&self.millis, percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_offs_are_the_times_between_holds_in_order() {
        let ms = 1_000_000;
        let holds = vec![(20 * ms, 21 * ms), (0, ms), (3 * ms, 10 * ms), (30 * ms, 31 * ms)];
        let seen = HandOffs::of(holds, 1).unwrap();
        assert_eq!((seen.holds, seen.millis.as_slice()), (4, &[2.0, 10.0][..]));
    }

    #[test]
    fn two_holders_at_once_are_an_error() {
        assert!(HandOffs::of(vec![(0, 10), (9, 20)], 1).is_err());
    }
}
