//! A store of one's own: all locks in one small text file that several processes share.
//!
//! It shows what a `Backend` needs and nothing more: one atomic step (an exclusive file lock around
//! read, change and write), an end of leases that is the machine's and not the client's, secrets
//! compared inside the step, and fences that rise. `tests/own_store.rs` runs the whole conformance
//! suite on it. For real use there is `holdtight-file`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, BootClock, Busy, Capabilities, Clock as _, ExtendBy,
    ExtendRequest, Extension, Fence, Guarantees, Holder, Key, Lease, LockError, MAX_TTL, Moment,
    Owner, Release, Reply, Secret,
};

/// Locks in the file `locks` of a directory.
#[derive(Debug)]
pub(crate) struct Notebook {
    directory: PathBuf,
}

/// What the file says: the last fence, and one line per lock.
#[derive(Default)]
struct Page {
    last_fence: u64,
    locks: BTreeMap<String, Line>,
}

struct Line {
    secret: String,
    fence: u64,
    ends_at: Moment,
    owner: String,
}

impl Notebook {
    /// The notebook in `directory`, which must exist.
    pub(crate) fn new(directory: impl Into<PathBuf>) -> Arc<Self> {
        Arc::new(Self { directory: directory.into() })
    }

    /// One atomic step: alone with the file, read it, change it, and put the new one in the old
    /// one's place.
    fn step<T: Send + 'static>(
        self: Arc<Self>,
        step: impl FnOnce(&mut Page, Moment) -> Result<T, LockError> + Send + 'static,
    ) -> Reply<T> {
        Box::pin(async move {
            let task = move || -> io::Result<Result<T, LockError>> {
                let alone = File::create(self.directory.join("alone"))?;
                alone.lock()?;
                let (path, new) = (self.directory.join("locks"), self.directory.join("locks.new"));
                let text = match fs::read_to_string(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                    text => text?,
                };
                // What cannot be read is never taken for "free".
                let Some(mut page) = Page::read(&text) else {
                    return Ok(Err(LockError::internal("the notebook is damaged; remove it")));
                };
                // The boot clock is the same for all processes of this machine, and nobody can set
                // it.
                let now = BootClock.now();
                page.locks.retain(|_, line| line.ends_at > now);
                let answer = step(&mut page, now);
                fs::write(&new, page.text())?;
                fs::rename(new, path)?;
                Ok(answer)
            };
            match tokio::task::spawn_blocking(task).await {
                Ok(Ok(answer)) => answer,
                // The file is replaced last, by one rename: if anything failed, nothing was done.
                Ok(Err(error)) => {
                    Err(LockError::unavailable("cannot use the notebook").with_source(error))
                }
                Err(error) => Err(LockError::internal("the step did not end").with_source(error)),
            }
        })
    }
}

impl Page {
    fn read(text: &str) -> Option<Self> {
        let mut page = Self::default();
        for line in text.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                [last] => page.last_fence = last.parse().ok()?,
                [key, secret, fence, ends, owner] => {
                    let (secret, owner) = (secret.to_owned(), owner.to_owned());
                    let ends_at = Moment::from_nanos(ends.parse().ok()?);
                    let line = Line { secret, fence: fence.parse().ok()?, ends_at, owner };
                    page.locks.insert(key.to_owned(), line);
                }
                _ => return None,
            }
        }
        Some(page)
    }

    /// Keys hold no control characters, secrets and owners are printable: tabs part them.
    fn text(&self) -> String {
        let mut text = format!("{}\n", self.last_fence);
        for (key, line) in &self.locks {
            let (fence, ends) = (line.fence, line.ends_at.as_nanos());
            let (secret, owner) = (&line.secret, &line.owner);
            let _ = writeln!(text, "{key}\t{secret}\t{fence}\t{ends}\t{owner}");
        }
        text
    }

    fn owned(&mut self, key: &Key, secret: &Secret) -> Option<&mut Line> {
        self.locks.get_mut(key.as_str()).filter(|line| line.secret == secret.expose())
    }
}

impl Line {
    fn lease(&self, now: Moment) -> Lease {
        Lease::new(Fence::new(self.fence), self.ends_at.since(now))
    }

    fn holder(&self, key: Key, now: Moment) -> Holder {
        let owner = Owner::from_text(&self.owner);
        Holder::of(key)
            .fence(Fence::new(self.fence))
            .owner(owner)
            .remaining(self.ends_at.since(now))
    }
}

impl Backend for Notebook {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("notebook")
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        self.step(move |page, now| {
            let end = now.after(request.ttl);
            if let Some(line) = page.owned(&request.key, &request.secret) {
                line.ends_at = line.ends_at.max(end);
                return Ok(Attempt::Granted(line.lease(now)));
            }
            if let Some(line) = page.locks.get(request.key.as_str()) {
                return Ok(Attempt::Busy(Busy::held_by(line.holder(request.key, now))));
            }
            let fence = Fence::new(page.last_fence).next(now.as_nanos() / 1000);
            let fence = fence.ok_or_else(|| LockError::internal("no fence is left"))?.get();
            let (secret, owner) = (request.secret.expose().to_owned(), request.owner.to_text());
            let line = Line { secret, fence, ends_at: end, owner };
            let lease = line.lease(now);
            page.last_fence = fence;
            page.locks.insert(request.key.as_str().to_owned(), line);
            Ok(Attempt::Granted(lease))
        })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        self.step(move |page, _| {
            if page.owned(&key, &secret).is_none() {
                return Ok(Release::NotHeld);
            }
            page.locks.remove(key.as_str());
            Ok(Release::Released)
        })
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        self.step(move |page, now| {
            let extend = |request: &ExtendRequest| {
                let Some(line) = page.owned(&request.key, &request.secret) else {
                    return Ok(Extension::NotHeld);
                };
                let end = match request.by {
                    ExtendBy::AtLeast(ttl) => now.after(ttl),
                    ExtendBy::Add(extra) => line.ends_at.after(extra).min(now.after(MAX_TTL)),
                    _ => return Err(LockError::unsupported("an extension of an unknown kind")),
                };
                line.ends_at = line.ends_at.max(end);
                Ok(Extension::Extended(line.lease(now)))
            };
            Ok(leases.iter().map(extend).collect())
        })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        self.step(move |page, now| {
            Ok(page.locks.get(key.as_str()).map(|line| line.holder(key.clone(), now)))
        })
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        self.step(move |page, now| {
            let found = page.locks.iter().filter(|(key, _)| key.starts_with(&prefix)).take(limit);
            found.map(|(key, line)| Ok(line.holder(Key::new(key)?, now))).collect()
        })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        Box::pin(async { Ok(Guarantees::new("notebook", Vec::new())) })
    }
}

#[cfg_attr(test, allow(dead_code, reason = "the tests use the store alone"))]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("notebook-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let lock = holdtight_core::Builder::shared(Notebook::new(&directory)).build()?;
    let handle = lock.acquire("user:123").await?;
    println!("held with fence {}", handle.fence());
    handle.release().await?;
    fs::remove_dir_all(directory)?;
    Ok(())
}
