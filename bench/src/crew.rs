//! Several processes of one contender, put to work at once.

use std::process::Command;

use serde_json::{Value, json};

use crate::driven::{Driven, Hold};
use crate::stats::percentile;
use crate::{Failure, load, peers};

pub(crate) struct Crew {
    members: Vec<Driven>,
}

impl Crew {
    /// Starts `count` processes by `command`, and waits until each has locked once, so that all are
    /// connected.
    fn start(count: u64, command: impl Fn() -> Result<Command, Failure>) -> Result<Self, Failure> {
        let members = (0..count).map(|_| Driven::start(&mut command()?));
        let mut crew = Self { members: members.collect::<Result<_, _>>()? };
        crew.ask(&json!({"op": "pairs", "tasks": 1, "each": 1}))?;
        Ok(crew)
    }

    /// A peer, on the Redis at `port`.
    pub(crate) fn of_peer(count: u64, name: &str, port: u16) -> Result<Self, Failure> {
        Self::start(count, || peers::command(name, port).ok_or_else(|| "is not installed".into()))
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

    /// Pairs per second of all together when each process does `each`, one after the other.
    pub(crate) fn pairs(&mut self, each: u64) -> Result<f64, Failure> {
        let answers = self.ask(&json!({"op": "pairs", "tasks": 1, "each": each}))?;
        let seconds = answers.iter().filter_map(|answer| answer["seconds"].as_f64());
        Ok(load::number(self.members.len() as u64 * each) / seconds.fold(f64::NAN, f64::max))
    }

    /// Lets `waiters` in all, shared among the processes, hold `key` for a millisecond, `each`
    /// times.
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
        let answers = self.ask_each(requests.collect::<Vec<_>>())?;
        for (process, answer) in (0_u64..).zip(answers) {
            let said = answer["holds"].as_array().ok_or("an answer without holds")?;
            for hold in said {
                let at = |place: usize| hold[place].as_u64().ok_or("a hold without its time");
                // Task 3 of one process is another one than task 3 of the next.
                holds.push((at(0)?, at(1)?, process * waiters + at(2)?));
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

/// How the lock passed from holder to holder.
#[derive(Debug)]
pub(crate) struct HandOffs {
    /// How often it did.
    pub(crate) count: u64,
    /// Times from a release to the next grant, in milliseconds.
    millis: Vec<f64>,
}

impl HandOffs {
    /// Takes the times between holds of different tasks: one that takes the lock again while others
    /// wait has handed nothing over. The last holds, when some waiters are done, are left out of
    /// the times.
    fn of(mut holds: Vec<Hold>, waiters: u64) -> Result<Self, Failure> {
        holds.sort_unstable();
        let busy = holds.len().saturating_sub(usize::try_from(waiters)?).max(2);
        let (mut count, mut millis) = (0, Vec::new());
        for (place, pair) in holds.windows(2).enumerate() {
            let ((_, released, before), (granted, _, after)) = (pair[0], pair[1]);
            if granted < released {
                return Err("two held the lock at once".into());
            }
            if before != after {
                count += 1;
                if place < busy {
                    millis.push(load::number(granted - released) / 1e6);
                }
            }
        }
        Ok(Self { count, millis })
    }

    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        percentile(&self.millis, percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_offs_are_the_times_between_holds_of_different_tasks_in_order() {
        let ms = 1_000_000;
        let holds =
            vec![(20 * ms, 21 * ms, 1), (0, ms, 1), (3 * ms, 10 * ms, 2), (30 * ms, 31 * ms, 1)];
        let seen = HandOffs::of(holds, 1).unwrap();
        assert_eq!((seen.count, seen.millis.as_slice()), (2, &[2.0, 10.0][..]));
    }

    #[test]
    fn two_holders_at_once_are_an_error() {
        assert!(HandOffs::of(vec![(0, 10, 1), (9, 20, 2)], 1).is_err());
    }
}
