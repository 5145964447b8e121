//! The table of docs/migrating.md that puts `flock` beside `holdtight run`, point by point: what it
//! says of the two is done with the two.
//!
//! A cell is a claim up to its first semicolon; what follows explains it.

#![cfg(target_os = "linux")]

mod run_harness;

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use run_harness::{Bench, Started, code, eventually, runs, stderr, stdout};

/// The page, with the table under this title.
const PAGE: &str = include_str!("../../../docs/migrating.md");
const TITLE: &str = "\n### Point by point\n";

/// Works until it is told to end, or the file `go` is there: each beat is a line in `beats`.
const WORK: &str = "echo $$ > worker; while [ ! -e go ]; do echo beat >> beats; sleep 0.02; done";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Flock,
    Ours,
}

use Tool::{Flock, Ours};

impl Tool {
    /// `flock OPTIONS lock WORDS` or `holdtight run OPTIONS lock WORDS`.
    fn command(self, bench: &Bench, options: &[&str], words: &[&str]) -> Command {
        let mut command = match self {
            Flock => Command::new("flock"),
            Ours => bench.holdtight(&["run"]),
        };
        command.args(options).arg("lock").args(words);
        command.current_dir(bench.path("")).stdin(Stdio::null());
        command
    }

    fn code(self, bench: &Bench, options: &[&str], words: &[&str]) -> i32 {
        code(&Started::new(&mut self.command(bench, options, words)).finish())
    }

    fn is_free(self, bench: &Bench) -> bool {
        self.code(bench, &["-n"], &["true"]) == 0
    }

    /// Starts work under the lock, and returns it with the number of the worker.
    fn start(self, bench: &Bench, options: &[&str]) -> (Started, i32) {
        let mut command = self.command(bench, options, &["sh", "-c", WORK]);
        let run = Started(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        (run, bench.pid("worker"))
    }
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

fn end(bench: &Bench, mut run: Started) {
    std::fs::write(bench.path("go"), "").unwrap();
    eventually("the end of the work", || run.has_ended());
}

/// What a busy lock means for whoever asks with these options.
fn busy(tool: Tool, options: &[&str]) -> String {
    let bench = Bench::new();
    let (run, _) = tool.start(&bench, &[]);
    let told = tool.code(&bench, options, &["touch", "ran"]);
    assert!(!bench.path("ran").exists());
    end(&bench, run);
    told.to_string()
}

/// What becomes of the lock when the command leaves a process behind, with its number in `child`.
fn left(tool: Tool, options: &[&str], script: &str) -> String {
    let bench = Bench::new();
    assert_eq!(tool.code(&bench, options, &["sh", "-c", script]), 0);
    let child = bench.pid("child");
    let free = tool.is_free(&bench);
    assert!(runs(child));
    kill(child);
    eventually("the lock", || tool.is_free(&bench));
    if free { "free" } else { "held until that ends" }.to_owned()
}

/// What becomes of lock and work when the tool gets a signal.
fn struck(tool: Tool, claim: &str, signal: Signal) -> String {
    let bench = Bench::new();
    let (mut run, worker) = tool.start(&bench, &[]);
    run.signal(signal);
    eventually("the end of the tool", || run.has_ended());
    // Work that goes on cannot be told from work that is about to be stopped: the claim is looked
    // for.
    if claim.ends_with("goes on") {
        let beats = || bench.read("beats").lines().count();
        let before = beats();
        eventually("work that goes on", || beats() > before);
        assert!(!tool.is_free(&bench) && runs(worker), "{tool:?}, {signal:?}");
        std::fs::write(bench.path("go"), "").unwrap();
        eventually("the lock", || tool.is_free(&bench));
        "held while the work goes on".to_owned()
    } else {
        let look = "case $(sed 's/.*) //; s/ .*//' /proc/$(cat worker)/stat 2>/dev/null) in \
                    ''|Z|X) echo stopped;; esac";
        let next = Started::new(&mut tool.command(&bench, &[], &["sh", "-c", look])).finish();
        assert_eq!(stdout(&next), "stopped\n", "{tool:?}, {signal:?}");
        "held until the work is stopped".to_owned()
    }
}

/// Runs a script that takes the lock for the rest of itself, and then does `rest`.
fn script(tool: Tool, bench: &Bench, rest: &str) -> i32 {
    let take = match tool {
        Flock => "exec 9>lock; flock -n 9 || exit 1",
        Ours => "eval \"$(holdtight hold -n lock || echo exit 1)\"",
    };
    let mut command = bench.holdtight(&[]);
    let path = std::path::Path::new(env!("CARGO_BIN_EXE_holdtight")).parent().unwrap();
    let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{take}\n{rest}")]).current_dir(bench.path("")).env("PATH", path);
    for (name, value) in command.stdin(Stdio::null()).get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let output = Started::new(shell.stdin(Stdio::null())).finish();
    assert_eq!(stderr(&output), "");
    code(&output)
}

fn rest_of_a_script(tool: Tool) -> String {
    let bench = Bench::new();
    let again = match tool {
        Flock => "flock -n lock true",
        Ours => "holdtight run -n lock true 2>/dev/null",
    };
    assert_eq!(script(tool, &bench, &format!("{again} && exit 9; exit 0")), 0, "{tool:?}");
    eventually("the lock", || tool.is_free(&bench));
    "free when the script ends".to_owned()
}

fn left_by_a_script(tool: Tool) -> String {
    let bench = Bench::new();
    let rest = "sleep 60 >/dev/null 2>&1 & echo $! > child";
    assert_eq!(script(tool, &bench, rest), 0, "{tool:?}");
    let free = tool.is_free(&bench);
    kill(bench.pid("child"));
    eventually("the lock", || tool.is_free(&bench));
    if free { "free" } else { "held until that ends" }.to_owned()
}

fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}

fn says_who_holds_it(tool: Tool) -> String {
    let bench = Bench::new();
    let (run, _) = tool.start(&bench, &[]);
    let output = Started::new(&mut tool.command(&bench, &["-n"], &["true"])).finish();
    let told = stderr(&output);
    end(&bench, run);
    yes(told.contains("PID:") && told.contains("Host:"))
}

fn leaves_something_behind(tool: Tool) -> String {
    let bench = Bench::new();
    assert_eq!(tool.code(&bench, &[], &["true"]), 0);
    yes(bench.path("lock").exists())
}

fn takes_several(tool: Tool) -> String {
    let bench = Bench::new();
    let keys = ["-k", "a", "-k", "b", "true"];
    let taken = match tool {
        Flock => {
            Started::new(Command::new("flock").args(keys).current_dir(bench.path(""))).finish()
        }
        Ours => bench.output(&[&["run"], &keys[..]].concat()),
    };
    yes(code(&taken) == 0)
}

fn lets_readers_in_together(tool: Tool) -> String {
    let bench = Bench::new();
    let mut first = tool.command(&bench, &["-s"], &["sh", "-c", WORK]);
    let mut run = Started(first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    if tool == Ours {
        eventually("the refusal", || run.has_ended());
    } else {
        bench.pid("worker");
    }
    let together = tool.code(&bench, &["-s", "-n"], &["true"]) == 0;
    end(&bench, run);
    yes(together)
}

fn gives_a_number(tool: Tool) -> String {
    let bench = Bench::new();
    let script = "echo $HOLDTIGHT_FENCE";
    let output = Started::new(&mut tool.command(&bench, &[], &["sh", "-c", script])).finish();
    yes(stdout(&output).trim().parse::<u64>().is_ok())
}

fn runs_a_line(tool: Tool) -> String {
    let bench = Bench::new();
    let output =
        Started::new(&mut tool.command(&bench, &[], &["-c", "echo a b | tr ' ' '-'"])).finish();
    assert_eq!(stdout(&output), "a-b\n", "{tool:?}");
    "runs".to_owned()
}

/// What is so, of the point called `point`; `claim` is what the table says.
fn finding(tool: Tool, point: &str, claim: &str) -> String {
    let exit = |script| tool.code(&Bench::new(), &[], &["sh", "-c", script]).to_string();
    match point {
        "the command exits with 3" => exit("exit 3"),
        "the command dies of KILL" => exit("kill -9 $$"),
        "it is busy, and nobody wants to wait" => busy(tool, &["-n"]),
        "it is busy for longer than `-w` allows" => busy(tool, &["-w", "0.1"]),
        "it is busy, and `-E 4` was given" => busy(tool, &["-n", "-E", "4"]),
        "who holds it is said" => says_who_holds_it(tool),
        "the command leaves a child in the background" => {
            left(tool, &[], "sleep 60 >/dev/null 2>&1 & echo $! > child")
        }
        "… that has a session of its own (`setsid`)" => left(
            tool,
            &[],
            "setsid sh -c 'echo $$ > child; exec sleep 60' >/dev/null 2>&1 &
                             while [ ! -s child ]; do sleep 0.02; done",
        ),
        "… that has a process group of its own (`timeout`)" => left(
            tool,
            &[],
            "timeout 60 sh -c 'echo $$ > child; exec sleep 60' >/dev/null 2>&1 &
                             while [ ! -s child ]; do sleep 0.02; done",
        ),
        "… and `-o` was given" => {
            left(tool, &["-o"], "sleep 60 >/dev/null 2>&1 & echo $! > child")
        }
        "the tool gets TERM" => struck(tool, claim, Signal::TERM),
        "the tool is killed by KILL" => struck(tool, claim, Signal::KILL),
        "`-c 'a \\| b'`" => runs_a_line(tool),
        "a lock for the rest of a script" => rest_of_a_script(tool),
        "… and what it left in the background" => left_by_a_script(tool),
        "a file or a key is left behind" => leaves_something_behind(tool),
        "several locks at once, all or none" => takes_several(tool),
        "readers together" => lets_readers_in_together(tool),
        "a number for what the lock protects" => gives_a_number(tool),
        other => panic!("the table has a point that nobody tries: {other}"),
    }
}

/// The cells of a row, without what explains them. A `\|` is no border.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_matches('|').replace("\\|", "\0");
    row.split('|').map(|cell| cell.trim().replace('\0', "\\|")).collect()
}

#[test]
fn what_the_table_says_of_flock_and_of_us_is_so() {
    if Command::new("flock").arg("--version").output().is_err() {
        eprintln!("skipped: there is no flock here");
        return;
    }
    let table = PAGE.split_once(TITLE).expect("the title of the table").1;
    let rows: Vec<_> = table.lines().skip_while(|line| !line.starts_with('|')).skip(2).collect();
    let rows = rows.iter().take_while(|line| line.starts_with('|')).map(|row| cells(row));
    let mut tried = 0;
    for row in rows {
        let [point, flock, _, ours] = &row[..] else { panic!("{row:?}") };
        for (tool, cell) in [(Flock, flock), (Ours, ours)] {
            let claim = cell.split(';').next().unwrap_or_default();
            assert_eq!(finding(tool, point, claim), claim, "{tool:?}: {point}");
        }
        tried += 1;
    }
    assert!(tried >= 19, "only {tried} points");
}
