//! The one error type. Every message says what happened, to which key, who holds it, and what to do
//! next.
//!
//! Stores map their own failures to a kind here; no type of a dependency shows.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::model::health::Guarantees;
use crate::model::holder::Holder;
use crate::model::key::Key;

/// What went wrong, to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock stayed busy until the wait was over.
    Timeout,
    /// This handle's lock is gone: the store said so, or its local deadline passed.
    Lost,
    /// The token belongs to no lock that is held now.
    NotHeld,
    /// The store could not be reached or refused to serve; the step was *not* done.
    Unavailable,
    /// The step may or may not have been done: the answer was lost.
    Ambiguous,
    /// The store refused the credentials, or they lack a right.
    AuthFailed,
    /// The store is out of a resource: memory, connections, quota.
    RateLimited,
    /// The key breaks a rule.
    InvalidKey,
    /// A token's text breaks a rule.
    InvalidToken,
    /// An option, a URL or a limit is wrong.
    InvalidConfig,
    /// The store cannot do this.
    Unsupported,
    /// The lock was shut down.
    Closed,
    /// A bug, or a store that answered nonsense.
    Internal,
}

impl ErrorKind {
    /// Whether the same call may succeed a little later.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Unavailable | Self::Ambiguous | Self::RateLimited)
    }

    /// Whether the step is known not to have been done.
    pub fn is_definite(self) -> bool {
        !matches!(self, Self::Ambiguous | Self::Internal)
    }

    /// One sentence for whoever is at the other end of a service: what is wrong in general, and
    /// whether to try again.
    ///
    /// It is one of a few fixed texts, so it names no key, holder, host, process, path or server.
    pub fn public_text(self) -> &'static str {
        match self {
            Self::Timeout => "somebody else is working on this; try again later",
            Self::Lost => "the work was stopped before it was done; try again",
            Self::NotHeld => "this is not reserved any more; start again",
            Self::Unavailable | Self::RateLimited => {
                "the service cannot be used right now; try again later"
            }
            Self::Ambiguous => "it is not known whether this was done; look before you try again",
            Self::InvalidKey => "this name cannot be used",
            Self::InvalidToken => "this token cannot be used",
            Self::Unsupported => "this cannot be done here",
            Self::Closed => "the service is shutting down; try again later",
            Self::AuthFailed | Self::InvalidConfig | Self::Internal => {
                "the service is not set up right; tell its operators"
            }
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "the lock is busy",
            Self::Lost => "the lock was lost",
            Self::NotHeld => "no such lock is held",
            Self::Unavailable => "the store is unavailable",
            Self::Ambiguous => "the outcome is unknown",
            Self::AuthFailed => "access denied",
            Self::RateLimited => "the store is out of resources",
            Self::InvalidKey => "invalid key",
            Self::InvalidToken => "invalid token",
            Self::InvalidConfig => "invalid configuration",
            Self::Unsupported => "not supported by this store",
            Self::Closed => "the lock was shut down",
            Self::Internal => "internal error",
        })
    }
}

/// Why an operation did not do what was asked.
///
/// One word wide, so a `Result` stays small. Branch on [`LockError::kind`]; print it for people who
/// may know all of it: the text names the key, the holder's host, process, user and command, and
/// what the store said. For everybody else there is [`LockError::public_text`].
///
/// ```
/// use holdtight_core::{ErrorKind, Key};
/// let error = Key::new("").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidKey);
/// ```
#[derive(Clone)]
pub struct LockError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    key: Option<Key>,
    attempts: Option<u32>,
    elapsed: Option<Duration>,
    holder: Option<Holder>,
    guarantees: Option<Guarantees>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {$(
        $(#[$doc])*
        #[cold]
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        }
    )*};
}

impl LockError {
    /// An error of `kind`. The message says what happened and what to do, without secrets.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            key: None,
            attempts: None,
            elapsed: None,
            holder: None,
            guarantees: None,
            source: None,
        }))
    }

    constructors! {
        /// See [`ErrorKind::Lost`].
        lost => Lost;
        /// See [`ErrorKind::NotHeld`].
        not_held => NotHeld;
        /// See [`ErrorKind::Unavailable`].
        unavailable => Unavailable;
        /// See [`ErrorKind::Ambiguous`].
        ambiguous => Ambiguous;
        /// See [`ErrorKind::AuthFailed`].
        auth_failed => AuthFailed;
        /// See [`ErrorKind::RateLimited`].
        rate_limited => RateLimited;
        /// See [`ErrorKind::InvalidKey`].
        invalid_key => InvalidKey;
        /// See [`ErrorKind::InvalidToken`].
        invalid_token => InvalidToken;
        /// See [`ErrorKind::InvalidConfig`].
        invalid_config => InvalidConfig;
        /// See [`ErrorKind::Unsupported`].
        unsupported => Unsupported;
        /// See [`ErrorKind::Closed`].
        closed => Closed;
        /// See [`ErrorKind::Internal`].
        internal => Internal;
    }

    /// Adds the key that this is about.
    pub fn with_key(mut self, key: &Key) -> Self {
        self.0.key = Some(key.clone());
        self
    }

    /// Adds how often the store was asked, and for how long.
    pub fn with_attempts(mut self, attempts: u32, elapsed: Duration) -> Self {
        self.0.attempts = Some(attempts);
        self.0.elapsed = Some(elapsed);
        self
    }

    /// Adds who holds the key.
    pub fn with_holder(mut self, holder: Option<Holder>) -> Self {
        self.0.holder = holder;
        self
    }

    /// Adds all that was found out about a store that is refused because of it.
    pub fn with_guarantees(mut self, guarantees: Guarantees) -> Self {
        self.0.guarantees = Some(guarantees);
        self
    }

    /// Adds the error underneath: the text of this one ends with it.
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// What went wrong, to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What may be shown to strangers, in the answer to a request for instance: see
    /// [`ErrorKind::public_text`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
    /// # use std::time::Duration;
    /// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
    /// let handle = lock.acquire("customer:4711").await?;
    /// let busy = lock.acquire("customer:4711").wait(Duration::ZERO).await.unwrap_err();
    /// assert!(busy.to_string().contains("customer:4711")); // and host, process and user: for the log
    /// assert_eq!(busy.public_text(), "somebody else is working on this; try again later");
    /// handle.release().await
    /// # }
    /// ```
    pub fn public_text(&self) -> &'static str {
        self.0.kind.public_text()
    }

    /// The error underneath, to look into. Its text stands at the end of this one's, so
    /// [`source`](Error::source) goes on behind it, and whoever prints a chain of errors prints it
    /// once.
    pub fn underlying(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }

    /// The key that this is about.
    pub fn key(&self) -> Option<&Key> {
        self.0.key.as_ref()
    }

    /// How often the store was asked.
    pub fn attempts(&self) -> Option<u32> {
        self.0.attempts
    }

    /// How long it was tried.
    pub fn elapsed(&self) -> Option<Duration> {
        self.0.elapsed
    }

    /// Who holds the key.
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// What was found out about the store, if it was refused because of it: `doctor` prints this.
    pub fn guarantees(&self) -> Option<&Guarantees> {
        self.0.guarantees.as_ref()
    }

    /// What happened, without saying to which lock: for those who may not know keys. Sources may
    /// name keys too.
    pub(crate) fn without_key(&self) -> Self {
        let mut bare = Self::new(self.0.kind, self.0.message.clone());
        (bare.0.attempts, bare.0.elapsed) = (self.0.attempts, self.0.elapsed);
        bare
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        match &inner.key {
            Some(key) => write!(f, "lock \"{}\": {}", key.as_str().escape_debug(), inner.kind)?,
            None => inner.kind.fmt(f)?,
        }
        if !inner.message.is_empty() {
            write!(f, ": {}", inner.message)?;
        }
        if let Some(holder) = &inner.holder {
            write!(f, "; held by {}", holder.owner)?;
            if let Some(age) = holder.age {
                write!(f, " for {}", Span(age))?;
            }
            match holder.remaining {
                Some(left) => write!(f, ", lease ends in {}", Span(left))?,
                None => f.write_str(", expires: never")?,
            }
        }
        match (inner.attempts, inner.elapsed) {
            (Some(1), Some(elapsed)) => write!(f, "; tried once in {}", Span(elapsed)),
            (Some(attempts), Some(elapsed)) => {
                write!(f, "; tried {attempts} times in {}", Span(elapsed))
            }
            _ => Ok(()),
        }?;
        match &inner.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

/// A span for people: `250 ms`, `12.3 s`, `5 min 2 s`.
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        match seconds {
            0 => write!(f, "{millis} ms"),
            1..60 => write!(f, "{seconds}.{} s", millis / 100),
            60..3600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            _ => write!(f, "{} h {} min", seconds / 3600, seconds % 3600 / 60),
        }
    }
}

impl fmt::Debug for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockError({:?}: {self})", self.0.kind)
    }
}

impl Error for LockError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // What is underneath was printed already.
        self.underlying()?.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::owner::Owner;

    #[test]
    fn a_message_says_what_to_which_key_and_who_holds_it() {
        let key = Key::new("deploy").unwrap();
        let owner = Owner::from_text("host=web-1 pid=42 user=ann").with_reason("release 7");
        let holder = Holder::of(key.clone())
            .owner(owner)
            .age(Duration::from_secs(125))
            .remaining(Duration::from_millis(900));
        let error = LockError::new(ErrorKind::Timeout, "gave up waiting")
            .with_key(&key)
            .with_holder(Some(holder))
            .with_attempts(3, Duration::from_millis(5100));
        assert_eq!(
            error.to_string(),
            "lock \"deploy\": the lock is busy: gave up waiting; held by pid 42 on web-1 (ann): release 7 \
             for 2 min 5 s, lease ends in 900 ms; tried 3 times in 5.1 s"
        );
        assert_eq!(error.clone().to_string(), error.to_string());
        assert_eq!(size_of::<LockError>(), size_of::<usize>());
    }

    #[test]
    fn the_source_is_kept() {
        let error = LockError::unavailable("cannot connect").with_source("connection refused");
        assert_eq!(error.underlying().unwrap().to_string(), "connection refused");
        assert!(error.to_string().ends_with("(connection refused)"));
        assert!(error.kind().is_transient() && error.kind().is_definite());
    }

    #[test]
    fn a_chain_of_errors_tells_every_cause_once() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let wrapped = LockError::unavailable("cannot connect").with_source(refused);
        let error = LockError::ambiguous("gave up").with_source(wrapped);
        let mut chain = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            chain += &source.to_string();
            next = source.source();
        }
        assert_eq!(chain.matches("connection refused").count(), 1, "{chain}");
        assert_eq!(chain.matches("cannot connect").count(), 1, "{chain}");
        let io = LockError::internal("").with_source(std::io::Error::from_raw_os_error(13));
        let inside = io.underlying().and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(inside.and_then(std::io::Error::raw_os_error), Some(13));
    }
}
