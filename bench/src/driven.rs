//! A process that works at our word: a request per line on its standard input, an answer per line
//! on its output.
//!
//! Peers in other languages and our own workers speak the same few requests, see [`crate::worker`].
//! A process ends when its input does, and is killed when it is dropped.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Failure;

/// Longer than any piece of work; whoever needs more has stopped working.
const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) struct Driven {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
}

/// What a process says of the pairs it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pairs {
    pub(crate) per_second: f64,
    pub(crate) p50_micros: f64,
}

/// When a lock was got and when its holder began to give it back, in nanoseconds of the machine's
/// monotonic clock; and which task that was.
pub(crate) type Hold = (u64, u64, u64);

impl Driven {
    pub(crate) fn start(command: &mut Command) -> Result<Self, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let requests = child.stdin.take().ok_or("no standard input")?;
        let output = child.stdout.take().ok_or("no standard output")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, requests, answers })
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&mut self, request: &Value) -> Result<Value, Failure> {
        self.tell(request)?;
        self.answer()
    }

    /// Asks without waiting.
    pub(crate) fn tell(&mut self, request: &Value) -> Result<(), Failure> {
        writeln!(self.requests, "{request}")?;
        Ok(self.requests.flush()?)
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> Result<Value, Failure> {
        self.answer_within(PATIENCE)
    }

    /// The next answer, for work that takes long.
    pub(crate) fn answer_within(&mut self, patience: Duration) -> Result<Value, Failure> {
        let line = self.answers.recv_timeout(patience).map_err(|_| "it does not answer")?;
        let answer: Value = serde_json::from_str(&line)?;
        match answer.get("error") {
            Some(error) => Err(error.to_string().into()),
            None => Ok(answer),
        }
    }

    /// `tasks` take and give back `each` keys of their own.
    pub(crate) fn pairs(&mut self, tasks: u64, each: u64) -> Result<Pairs, Failure> {
        let answer = self.ask(&json!({"op": "pairs", "tasks": tasks, "each": each}))?;
        let number = |name: &str| answer[name].as_f64().ok_or("an answer without its number");
        let (seconds, p50_micros) = (number("seconds")?, number("p50_us")?);
        Ok(Pairs { per_second: crate::load::number(tasks * each) / seconds, p50_micros })
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
