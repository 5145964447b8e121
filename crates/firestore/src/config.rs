//! Where the locks are and how they are reached: from a URL, or set one by one. Only checks and
//! defaults.

use std::time::Duration;

use holdtight_core::LockError;
use holdtight_kit::url::{Options, percent_decode, split};

const DEFAULT_DATABASE: &str = "(default)";
const DEFAULT_COLLECTION: &str = "holdtight_locks";

/// How locks are written: whom they are shared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Holdtight's own.
    #[default]
    Native,
    /// The documents of the Node library `syncguard`, in its collections `locks` and
    /// `fence_counters`.
    Syncguard,
}

/// All settings of a [`FirestoreStore`](crate::FirestoreStore).
///
/// ```
/// use holdtight_firestore::FirestoreConfig;
/// let config = FirestoreConfig::from_url("firestore://my-project?collection=shop_locks&timeout=3s")?;
/// let config = FirestoreConfig::new("my-project")?.emulator("127.0.0.1:8080")?;
/// assert!(FirestoreConfig::from_url("firestore://my-project?colour=red").is_err());
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FirestoreConfig {
    project: String,
    database: String,
    collection: Option<String>,
    fence_collection: String,
    layout: Layout,
    pub(crate) emulator: Option<String>,
    pub(crate) timeout: Duration,
}

impl FirestoreConfig {
    /// The default database of `project`.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a name that no project has.
    pub fn new(project: &str) -> Result<Self, LockError> {
        Ok(Self {
            project: name("the project", project, "-.:")?,
            database: DEFAULT_DATABASE.to_owned(),
            collection: None,
            fence_collection: "fence_counters".to_owned(),
            layout: Layout::Native,
            emulator: None,
            timeout: Duration::from_secs(5),
        })
    }

    /// Reads `firestore://PROJECT[/DATABASE]`, with options as `?name=value&…`: those of the
    /// methods here. An unknown one is an error, so that a typing mistake does not pass in silence.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), saying which part is wrong.
    pub fn from_url(url: &str) -> Result<Self, LockError> {
        let example = "firestore://PROJECT or firestore://PROJECT/DATABASE";
        let url = split(url, example)?;
        let (Some(project), "firestore") = (url.authority, url.scheme.as_str()) else {
            return Err(invalid(&format!("write {example}")));
        };
        let mut config = Self::new(project)?;
        if let Some(database) = url.path.strip_prefix('/').filter(|path| !path.is_empty()) {
            config = config.database(&percent_decode(database)?)?;
        }
        let mut options = Options::parse("Firestore", url.query)?;
        if let Some(collection) = options.text("collection")? {
            config = config.collection(&collection)?;
        }
        if let Some(collection) = options.text("fence_collection")? {
            config = config.fence_collection(&collection)?;
        }
        if let Some(address) = options.text("emulator")? {
            config = config.emulator(&address)?;
        }
        if let Some(timeout) = options.duration("timeout")? {
            config = config.timeout(timeout)?;
        }
        let layouts = [("native", Layout::Native), ("syncguard", Layout::Syncguard)];
        config.layout = options.choice("layout", &layouts)?.unwrap_or_default();
        options.finish()?;
        if config.layout == Layout::Syncguard && config.collection_id() == config.fence_collection {
            return Err(invalid("collection and fence_collection must differ"));
        }
        Ok(config)
    }

    /// Another database of the project than `(default)`.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a name that no database has.
    pub fn database(mut self, database: &str) -> Result<Self, LockError> {
        self.database = if database == DEFAULT_DATABASE {
            database.to_owned()
        } else {
            name("the database", database, "-")?
        };
        Ok(self)
    }

    /// The collection that the documents are in: `holdtight_locks` (`locks` for syncguard) unless
    /// said otherwise. Keep it for locks alone.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) unless it is letters, digits,
    /// `-` and `_`, and not between double underscores.
    pub fn collection(mut self, collection: &str) -> Result<Self, LockError> {
        self.collection = Some(collection_name(collection)?);
        Ok(self)
    }

    /// The collection of syncguard's counters: `fence_counters` unless said otherwise.
    ///
    /// # Errors
    /// As [`FirestoreConfig::collection`].
    pub fn fence_collection(mut self, collection: &str) -> Result<Self, LockError> {
        self.fence_collection = collection_name(collection)?;
        Ok(self)
    }

    /// Writes locks as others do.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// An emulator at `host:port` instead of Google: no credentials, no durability. For tests.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for what is not `host:port`.
    pub fn emulator(mut self, address: &str) -> Result<Self, LockError> {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host_ok = match bracketed {
            Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            }
        };
        if !host_ok || port.parse::<u16>().is_err() {
            return Err(invalid(
                "an emulator is written host:port, as FIRESTORE_EMULATOR_HOST has it",
            ));
        }
        self.emulator = Some(address.to_owned());
        Ok(self)
    }

    /// How long to wait for an answer: 5 s unless said otherwise.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) outside 10 ms to 60 s.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self, LockError> {
        if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&timeout) {
            return Err(LockError::invalid_config("timeout is not between 10 ms and 60 s"));
        }
        self.timeout = timeout;
        Ok(self)
    }

    /// `projects/P/databases/D/documents`.
    pub(crate) fn documents(&self) -> String {
        format!("projects/{}/databases/{}/documents", self.project, self.database)
    }

    pub(crate) fn collection_id(&self) -> &str {
        self.collection.as_deref().unwrap_or(match self.layout {
            Layout::Native => DEFAULT_COLLECTION,
            Layout::Syncguard => "locks",
        })
    }

    pub(crate) fn fence_collection_id(&self) -> &str {
        &self.fence_collection
    }

    pub(crate) fn layout_used(&self) -> Layout {
        self.layout
    }
}

fn invalid(what: &str) -> LockError {
    LockError::invalid_config(format!("the store URL is wrong: {what}"))
}

fn collection_name(text: &str) -> Result<String, LockError> {
    if text.starts_with("__") {
        return Err(invalid("names with two underscores in front belong to Firestore"));
    }
    name("the collection", text, "-_")
}

/// Only what needs no encoding anywhere: these names stand in paths.
fn name(what: &str, text: &str, also: &str) -> Result<String, LockError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || also.contains(c);
    if text.is_empty() || text.len() > 100 || !text.chars().all(legal) || text.starts_with('.') {
        return Err(invalid(&format!("{what} is 1 to 100 letters, digits and {also}")));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_name_project_database_and_collection() {
        let config = FirestoreConfig::from_url("firestore://my-project").unwrap();
        assert_eq!(config.documents(), "projects/my-project/databases/(default)/documents");
        let url = "firestore://p/main?collection=locks&emulator=[::1]:80&timeout=250ms";
        let config = FirestoreConfig::from_url(url).unwrap();
        assert_eq!(config.documents(), "projects/p/databases/main/documents");
        assert_eq!(config.collection_id(), "locks");
        assert_eq!(config.emulator.as_deref(), Some("[::1]:80"));
        assert_eq!(config.timeout, Duration::from_millis(250));
    }

    #[test]
    fn mistakes_are_named() {
        for (url, word) in [
            ("firestore", "firestore://"),
            ("redis://p", "firestore://"),
            ("firestore://", "project"),
            ("firestore://../x", "project"),
            ("firestore://p/a/b", "database"),
            ("firestore://p?collection=a/b", "collection"),
            ("firestore://p?collection=__x__", "underscores"),
            ("firestore://p?emulator=localhost", "host:port"),
            ("firestore://p?emulator=u@h:1", "host:port"),
            ("firestore://p?timeout=x", "timeout"),
            ("firestore://p?timeout=0", "timeout"),
            ("firestore://p?layout=other", "layout"),
            ("firestore://p?layout=syncguard&fence_collection=locks", "differ"),
            ("firestore://p?emulater=h:1", "unknown"),
            ("firestore://p?timeout=1&timeout=2", "twice"),
        ] {
            let error = FirestoreConfig::from_url(url).unwrap_err().to_string();
            assert!(error.contains(word), "{url}: {error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_read_without_panic(text: String) {
            let _ = FirestoreConfig::from_url(&text);
            let _ = FirestoreConfig::from_url(&format!("firestore://p?{text}"));
        }
    }
}
