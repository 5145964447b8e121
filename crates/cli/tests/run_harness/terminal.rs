//! A terminal with an interactive shell in it, typed into and read by a test.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{Bench, Started, eventually};

pub(crate) struct Terminal {
    master: File,
    screen: Arc<Mutex<String>>,
    /// How much of the screen has been looked at.
    seen: usize,
    shell: Started,
}

impl Terminal {
    /// A terminal in which `bash` waits for commands, with job control. `$H` is holdtight on the
    /// store of `bench`.
    pub(crate) fn new(bench: &Bench) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 })
            .unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let side = || Stdio::from(rustix::fs::open(&name, flags, Mode::empty()).unwrap());
        // `holdtight` is only a way to the prepared environment.
        let mut command = bench.holdtight(&[]);
        let mut shell = std::process::Command::new("setsid");
        shell.args(["--ctty", "--wait", "bash", "--norc", "--noprofile", "-i"]);
        shell.current_dir(command.get_current_dir().unwrap());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.env("H", command.get_program()).env("PS1", "ready> ").env("TERM", "xterm");
        shell.env("HISTFILE", "/dev/null");
        command.stdin(Stdio::null());
        shell.stdin(side()).stdout(side()).stderr(side());
        let shell = Started(shell.spawn().unwrap());
        let screen = Arc::new(Mutex::new(String::new()));
        let master = File::from(master);
        let (mut reading, filling) = (master.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = reading.read(&mut chunk) {
                filling.lock().unwrap().push_str(&String::from_utf8_lossy(&chunk[..read]));
            }
        });
        let mut terminal = Self { master, screen, seen: 0, shell };
        terminal.expect("ready> ");
        terminal
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        // When the shell has ended, nobody reads any more.
        let _ = self.master.write_all(keys.as_bytes());
    }

    /// Enters a line, and skips its echo.
    pub(crate) fn enter(&mut self, line: &str) {
        self.press(line);
        self.press("\n");
        self.expect("\r\n");
    }

    /// Waits until `text` appears after what was seen before; returns what came before it.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let mut found = None;
        let (screen, seen) = (Arc::clone(&self.screen), self.seen);
        let what = format!("{text:?}");
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(&what, || {
                found = screen.lock().unwrap()[seen..].find(text);
                found.is_some()
            });
        }));
        let shown = || self.screen.lock().unwrap()[seen..].to_owned();
        assert!(looked.is_ok(), "{what} did not appear; on the screen: {:?}", shown());
        let before = self.screen.lock().unwrap()[seen..seen + found.unwrap()].to_owned();
        self.seen = seen + found.unwrap() + text.len();
        before
    }

    /// What has appeared since the last look.
    pub(crate) fn unseen(&self) -> String {
        self.screen.lock().unwrap()[self.seen..].to_owned()
    }

    /// The exit code of the last command.
    pub(crate) fn status(&mut self) -> String {
        self.enter("echo code=$?=");
        self.expect("code=");
        self.expect("=")
    }

    /// Leaves the shell, which may have been given Ctrl-D before it was ready for it.
    pub(crate) fn close(mut self) {
        let mut presses = 0;
        eventually("the end of the shell", || {
            presses += 1;
            if presses % 20 == 1 {
                self.press("\x04");
            }
            self.shell.has_ended()
        });
    }
}

pub(crate) const CTRL_C: &str = "\x03";
pub(crate) const CTRL_Z: &str = "\x1a";
pub(crate) const CTRL_BACKSLASH: &str = "\x1c";
