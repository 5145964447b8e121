//! `hold` itself, called inside `eval "$(…)"`: starts the keeper, waits for the lock, and prints
//! code for the shell.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use holdtight_kit::duration;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, mkfifoat};

use super::code::{self, Hold, VARIABLE, holds};
use super::held::is_alive;
use super::keep::{self, KEEPER};
use crate::args::HoldArgs;
use crate::config::Origin;
use crate::conflict::quoted;
use crate::context::Context;
use crate::disposition;
use crate::exit::{self, Failure};
use crate::run::asker::TOLD;
use crate::run::holders::{self, PIPE, PLACE, SHELL};
use crate::run::{CANNOT_START, own_binary};
use crate::{output, store, threads};

/// The lease when nothing else is said, as for `run`.
const TTL: Duration = Duration::from_secs(30);

/// The numbers that every shell can redirect. Scripts are fond of 3 and, for flock, of 9, so these
/// come last.
const FREE: [u32; 7] = [8, 7, 6, 5, 4, 9, 3];

/// Takes the lock, and prints what the shell has to do to keep it.
pub(crate) fn take(args: &HoldArgs, context: &Context) -> Result<u8, Failure> {
    must_be_evaluated()?;
    store::must_outlive_us(&context.settings)?;
    store::check_keys([&args.key])?;
    let mut before = holds(&std::env::var(VARIABLE).unwrap_or_default());
    // What was given back, or lost, is nothing to go on with.
    before.retain(is_alive);
    if before.iter().any(|hold| hold.key == args.key) {
        return Err(Failure::usage(format!(
            "this script holds {} already; it would wait for itself",
            quoted(&args.key)
        )));
    }
    let descriptor = free_descriptor()?;
    // A keeper that had them too would keep what this script has held before.
    for hold in &before {
        let _ = nix::unistd::close(i32::try_from(hold.descriptor).unwrap_or(-1));
    }
    let place = make_place()?;
    let taken = Keeper::start(args, context, &place).and_then(Keeper::wait);
    let (mut keeper, ready) = match taken {
        Ok(taken) => taken,
        Err(failure) => {
            holders::remove(&place);
            return Err(failure);
        }
    };
    let told = ready
        .hold(descriptor, &args.key)
        .and_then(|hold| code::bind(&hold, &place.join(PIPE), &before));
    let told = told.ok_or_else(|| Failure::new(exit::SOFTWARE, "the keeper said nonsense"));
    if let Err(failure) = told.and_then(output::print) {
        // Nobody can evaluate it, so nobody would ever give the lock back.
        keeper.stop();
        return Err(Failure::new(exit::LOST, format!("{failure}; the lock was given back")));
    }
    keeper.has_told();
    Ok(exit::OK)
}

/// Refuses to take a lock for a shell that does not evaluate the answer.
fn must_be_evaluated() -> Result<(), Failure> {
    let out = io::stdout();
    let kind =
        rustix::fs::fstat(&out).map(|found| rustix::fs::FileType::from_raw_mode(found.st_mode));
    if out.is_terminal() || kind.is_ok_and(rustix::fs::FileType::is_char_device) {
        return Err(Failure::usage(
            "what this prints is for the shell, and nothing was taken; write: eval \"$(holdtight hold KEY || echo exit 1)\"",
        ));
    }
    Ok(())
}

/// A number that is free in the script, whose descriptors we have inherited.
fn free_descriptor() -> Result<u32, Failure> {
    let is_free =
        |number: &u32| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_err();
    FREE.into_iter().find(is_free).ok_or_else(|| {
        Failure::usage("all descriptors from 3 to 9 are in use; close one, as in: exec 8>&-")
    })
}

/// A new directory with a pipe in it, for this user alone.
fn make_place() -> Result<PathBuf, Failure> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute() && path.is_dir());
    let mut refused = None;
    for parent in runtime.into_iter().chain([std::env::temp_dir()]) {
        for number in 0..16 {
            let now = holdtight::Clock::now(&holdtight::BootClock).as_nanos();
            let place = parent.join(format!("{PLACE}{}-{now:x}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&place) {
                Ok(()) => {
                    let pipe = mkfifoat(CWD, place.join(PIPE), Mode::RUSR | Mode::WUSR);
                    let made = pipe.map_err(io::Error::from);
                    let made = made.and_then(|()| File::create_new(place.join(SHELL)));
                    return match made {
                        Ok(_) => Ok(place),
                        Err(error) => {
                            holders::remove(&place);
                            Err(Failure::file(&place, &error))
                        }
                    };
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    refused = Some(Failure::file(&place, &error));
                    break;
                }
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        Failure::usage("no place for a pipe; set TMPDIR to a directory of yours")
    }))
}

/// The keeper, while we wait for it.
struct Keeper(Child);

/// What the keeper says when it has the lock: `PID START FENCE`.
struct Ready(String);

impl Ready {
    fn hold(&self, descriptor: u32, key: &str) -> Option<Hold> {
        holds(&format!("{descriptor} {} {key}", self.0.trim())).pop()
    }
}

impl Keeper {
    fn start(args: &HoldArgs, context: &Context, place: &Path) -> Result<Self, Failure> {
        let settings = &context.settings;
        let ttl = settings.ttl(args.ttl)?.unwrap_or(TTL);
        let usual = settings.kill_after.as_ref().map(|span| span.value);
        let grace = usual.unwrap_or(ttl / 10).min(ttl * 2 / 5);
        let mut line: Vec<OsString> = vec![KEEPER.into(), place.into()];
        if settings.store.origin == Origin::Flag {
            line.extend(["--store".into(), settings.store.value.expose().into()]);
        }
        if context.json {
            line.push("--json".into());
        }
        line.extend(["run".into(), format!("--key={}", args.key).into()]);
        line.push(format!("--ttl={}", duration::text(ttl)).into());
        line.push(format!("--kill-after={}", duration::text(grace)).into());
        line.push(format!("--told-as={}", script_name()).into());
        line.extend(["--script".into(), place.into()]);
        if args.patience.nonblock {
            line.push("--nonblock".into());
        }
        if let Some(wait) = args.patience.wait {
            line.push(format!("--wait={}", duration::text(wait)).into());
        }
        if let Some(reason) = &args.reason {
            line.push(format!("--reason={reason}").into());
        }
        line.push("--".into());
        line.extend(keep::words(place.as_os_str(), grace));
        let cannot = |error: io::Error| {
            Failure::new(CANNOT_START, format!("cannot start another process: {error}"))
        };
        let keeper = Command::new(own_binary().map_err(cannot)?)
            .arg0("holdtight")
            .args(line)
            // By this it knows that we are gone, however that came.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Not ours: whoever reads that to its end must not wait for the end of the script.
            .stderr(Stdio::piped())
            .spawn();
        Ok(Self(keeper.map_err(cannot)?))
    }

    /// Waits until it has the lock, and passes on what it says meanwhile. Ctrl-C ends both.
    fn wait(mut self) -> Result<(Self, Ready), Failure> {
        let relay = match self.end_with_us().and_then(|()| self.relay()) {
            Ok(relay) => relay,
            Err(error) => {
                self.stop();
                return Err(threads::cannot(&error));
            }
        };
        let mut ready = String::new();
        if let Some(stdout) = &mut self.0.stdout {
            if !said_something(stdout) {
                self.stop();
                let why = "nobody reads what this prints any more; nothing was taken";
                return Err(Failure::new(exit::LOST, why));
            }
            let _ = BufReader::new(stdout).read_line(&mut ready);
        }
        if ready.ends_with('\n') {
            return Ok((self, Ready(ready)));
        }
        let status = self.0.wait();
        if let Some(relay) = relay {
            let _ = relay.join();
        }
        // It has told what there was to tell.
        let code = status.ok().and_then(|status| status.code());
        let code = code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code != exit::OK);
        Err(Failure::silent(code.unwrap_or(exit::SOFTWARE)))
    }

    /// Passes on what the keeper says.
    fn relay(&mut self) -> io::Result<Option<JoinHandle<()>>> {
        let Some(mut stderr) = self.0.stderr.take() else { return Ok(None) };
        let relay = move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut chunk) {
                let _ = io::stderr().write_all(&chunk[..read]);
            }
        };
        std::thread::Builder::new().spawn(relay).map(Some)
    }

    /// Has a signal that ends us end the keeper too.
    fn end_with_us(&self) -> io::Result<()> {
        let wanted = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        let ours = wanted.into_iter().filter(|signal| !disposition::is_ignored(*signal));
        let set: SigSet = ours.collect();
        let keeper = self.0.id();
        if set.thread_block().is_ok() {
            let end = move || {
                if let Ok(signal) = set.wait() {
                    send_term(keeper);
                    disposition::die_of(signal);
                }
            };
            std::thread::Builder::new().spawn(end)?;
        }
        Ok(())
    }

    /// The script knows how to keep the lock: from here on it is not for us that it is kept.
    fn has_told(&mut self) {
        if let Some(mut line) = self.0.stdin.take() {
            // A keeper that is gone is noticed by the script.
            let _ = line.write_all(&[TOLD]);
        }
    }

    fn stop(mut self) {
        send_term(self.0.id());
        let _ = self.0.wait();
    }
}

/// Waits until the keeper says something, or has ended. Not, if there is nobody any more who would
/// evaluate our answer: a script that was killed.
fn said_something(keeper: &ChildStdout) -> bool {
    let answer = io::stdout();
    loop {
        // Without a wish the kernel tells only of the end.
        let mut watched = [
            PollFd::new(keeper, PollFlags::IN),
            PollFd::from_borrowed_fd(answer.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut watched, None) {
            Ok(_) if !watched[0].revents().is_empty() => return true,
            Ok(_) if watched[1].revents().contains(PollFlags::ERR) => return false,
            // What cannot be waited for is read, and then written, as if somebody were there.
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return true,
        }
    }
}

fn send_term(process: u32) {
    if let Some(pid) = i32::try_from(process).ok().filter(|pid| *pid > 1) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
}

/// What the script is called, for whoever finds the key held.
fn script_name() -> String {
    let parent = std::os::unix::process::parent_id();
    let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "sh".to_owned() } else { output::clean(name) }
}
