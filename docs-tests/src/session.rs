//! A home of its own for one document: its blocks run there in order, see each other's files, and
//! nothing of the user's. Every block is bounded in time.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::transcript::{Exchange, matches};

/// Beyond this a block hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Between two looks whether a block has ended.
const TICK: Duration = Duration::from_millis(10);

/// The place where the blocks of one document run. Removed when dropped.
#[derive(Debug)]
pub struct Session {
    dir: PathBuf,
    limit: Duration,
}

impl Session {
    /// An empty home, with `program` on `PATH` under its own name if there is one.
    ///
    /// # Errors
    /// The directories cannot be made.
    pub fn new(program: Option<&Path>) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("holdtight-docs-{}-{number}", std::process::id());
        let session = Self { dir: std::env::temp_dir().join(name), limit: LIMIT };
        for part in ["home", "bin", "out"] {
            fs::create_dir_all(session.dir.join(part))?;
        }
        if let Some(program) = program {
            let name = program.file_name().unwrap_or_default();
            std::os::unix::fs::symlink(program, session.dir.join("bin").join(name))?;
        }
        Ok(session)
    }

    /// Runs `script`, which must succeed.
    ///
    /// # Errors
    /// It failed or hung; the message ends with what it printed.
    pub fn script(&self, script: &str) -> Result<(), String> {
        let log = self.dir.join("out/log");
        let status = self.bash(&["-eu", "-o", "pipefail", "-c", script], &log)?;
        if status.success() {
            return Ok(());
        }
        Err(format!("{status}\n{}", fs::read_to_string(&log).unwrap_or_default()))
    }

    /// Types the commands of a transcript into one shell and compares what each prints.
    ///
    /// # Errors
    /// An answer differs, or a command failed and the transcript does not show it.
    pub fn transcript(&self, exchanges: &[Exchange]) -> Result<(), String> {
        let out = |number: usize| self.dir.join(format!("out/{number}"));
        let code = |number: usize| self.dir.join(format!("out/{number}.code"));
        let mut script = vec!["__code=0".to_owned()];
        for (number, exchange) in exchanges.iter().enumerate() {
            let (out, code) = (out(number), code(number));
            for old in [&out, &code] {
                match fs::remove_file(old) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(error.to_string());
                    }
                    _ => {}
                }
            }
            // A group, not a subshell, so that variables live on; `$?` is what the last command
            // left.
            let (out, code) = (out.display(), code.display());
            script.push(format!("(exit $__code); {{\n{}\n}} >'{out}' 2>&1", exchange.command));
            script.push(format!("__code=$?; echo $__code >'{code}'"));
        }
        let log = self.dir.join("out/log");
        let status = self.bash(&["-c", &script.join("\n")], &log)?;
        for (number, exchange) in exchanges.iter().enumerate() {
            let Ok(code) = fs::read_to_string(code(number)) else {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("`{}` was not reached: {status}\n{said}", exchange.command));
            };
            let actual = fs::read(out(number)).map_err(|error| error.to_string())?;
            let actual = String::from_utf8_lossy(&actual);
            let Exchange { command, expected } = exchange;
            if !matches(expected, &actual) {
                return Err(format!("`{command}`\nexpected:\n{expected}\nprinted:\n{actual}"));
            }
            let asked = exchanges.get(number + 1).is_some_and(|next| next.command.contains("$?"));
            if code.trim() != "0" && expected.trim().is_empty() && !asked {
                let code = code.trim();
                return Err(format!("`{command}` failed with {code}, which the page hides"));
            }
        }
        Ok(())
    }

    fn bash(&self, args: &[&str], log: &Path) -> Result<ExitStatus, String> {
        let open = || File::create(log).and_then(|file| Ok((file.try_clone()?, file)));
        let (stdout, stderr) = open().map_err(|error| error.to_string())?;
        let home = self.dir.join("home");
        let mut child = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .args(args)
            .env_clear()
            .envs([("LANG", "C.UTF-8"), ("TERM", "dumb"), ("USER", "reader")])
            .env("HOME", &home)
            .env("PATH", self.path())
            .current_dir(&home)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("bash could not start: {error}"))?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status);
            }
            if start.elapsed() > self.limit {
                // The whole group, and before the shell is waited for: its number can't be anyone
                // else's yet.
                let group = format!("-{}", child.id());
                let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
                let waited = child.wait();
                let said = fs::read_to_string(log).unwrap_or_default();
                killed.and(waited).map_err(|error| error.to_string())?;
                return Err(format!("still running after {:?}, stopped\n{said}", self.limit));
            }
            std::thread::sleep(TICK);
        }
    }

    fn path(&self) -> OsString {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = self.dir.join("bin");
        let dirs = [own].into_iter().chain(std::env::split_paths(&path));
        std::env::join_paths(dirs).unwrap_or(path)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Best effort: a stray process of a document may still be writing here.
        drop(fs::remove_dir_all(&self.dir));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::exchanges;

    fn transcript(text: &str) -> Result<(), String> {
        Session::new(None).unwrap().transcript(&exchanges(text).unwrap())
    }

    #[test]
    fn blocks_see_each_others_files_in_a_home_of_their_own() {
        let session = Session::new(None).unwrap();
        session.script("echo one >~/file").unwrap();
        session.script("test \"$(cat file)\" = one; test \"$PWD\" = \"$HOME\"").unwrap();
        let dir = session.dir.clone();
        drop(session);
        assert!(!dir.exists());
    }

    #[test]
    fn a_script_stops_at_its_first_failure_and_shows_what_it_printed() {
        let problem = Session::new(None).unwrap().script("echo before; false; echo after");
        let problem = problem.unwrap_err();
        assert!(problem.contains("before") && !problem.contains("after"), "{problem}");
    }

    #[test]
    fn nothing_of_the_users_environment_is_seen() {
        Session::new(None).unwrap().script("test -z \"${CARGO_MANIFEST_DIR+set}\"").unwrap();
    }

    #[test]
    fn the_program_is_found_by_its_name() {
        let session = Session::new(Some(&std::env::current_exe().unwrap())).unwrap();
        let exe = std::env::current_exe().unwrap();
        let name = exe.file_name().unwrap().to_str().unwrap().to_owned();
        session.script(&format!("command -v {name}")).unwrap();
    }

    #[test]
    fn a_transcript_keeps_variables_and_exit_codes_from_command_to_command() {
        transcript(
            "$ word=hello\n$ echo $word; echo err >&2\nhello\nerr\n$ (exit 75)\n$ echo $?\n75\n",
        )
        .unwrap();
    }

    #[test]
    fn a_wrong_answer_shows_both() {
        let problem = transcript("$ echo two\none\n").unwrap_err();
        assert!(
            problem.contains("expected:\none") && problem.contains("printed:\ntwo"),
            "{problem}"
        );
    }

    #[test]
    fn a_failure_that_the_page_hides_is_found() {
        assert!(transcript("$ false\n").unwrap_err().contains("hides"));
        assert!(transcript("$ exit 3\n$ echo on\non\n").unwrap_err().contains("not reached"));
        assert!(transcript("$ ls /nowhere/at/all\nls: ...\n").is_ok());
    }

    #[test]
    fn a_block_that_hangs_is_stopped_with_all_its_processes() {
        let mut session = Session::new(None).unwrap();
        session.limit = Duration::from_secs(3);
        let problem = session.script("echo $$; sleep 600 & wait").unwrap_err();
        assert!(problem.contains("still running"), "{problem}");
        let group = problem.lines().find(|line| line.parse::<u32>().is_ok()).unwrap();
        let alive = || {
            let mut probe = Command::new("kill");
            probe.args(["-0", "--", &format!("-{group}")]).stderr(Stdio::null());
            probe.status().unwrap().success()
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while alive() && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
        assert!(!alive(), "processes are left");
    }
}
