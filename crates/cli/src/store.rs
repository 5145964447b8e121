//! The store that this call works on: chosen by the settings, and connected to.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdtight::{Builder, ByUrl, DistributedLock, Key, KeyForm, LockError, StoreUrl};
use holdtight_file::{Config, FileStore};

use crate::config::{Origin, Setting, Settings};
use crate::exit::Failure;
use crate::output;

/// The variable by which Google's own tools are led to an emulator.
const EMULATOR: &str = "FIRESTORE_EMULATOR_HOST";

/// Warns if locks go elsewhere than the URL says, because of a variable that people forget.
pub(crate) fn warn_of_emulator(settings: &Settings, json: bool) {
    let url = &settings.store.value;
    let led = std::env::var(EMULATOR).is_ok_and(|address| !address.is_empty());
    if led && url.scheme() == "firestore" && !url.expose().contains("emulator=") {
        output::warn(
            json,
            format_args!("{EMULATOR} is set: locks are kept in an emulator, not in Firestore"),
        );
    }
}

/// Says that the store of this user is not where an earlier version kept it.
pub(crate) fn warn_of_old_place(settings: &Settings, json: bool) {
    if settings.store.origin != Origin::Default {
        return;
    }
    if let Some(old) = crate::config::store_elsewhere(&crate::config::ThisProcess) {
        let (old, now) = (old.display(), &settings.store.value);
        output::warn(
            json,
            format_args!(
                "there is a store in {old}, and locks are kept in {now}: XDG_STATE_HOME is not read, because cron \
                 does not have it; remove that directory, or name it: HOLDTIGHT_STORE=file:{old}"
            ),
        );
    }
}

/// Warns if the store's URL has a password where others can read it.
pub(crate) fn warn_if_exposed(settings: &Settings, json: bool) {
    let Setting { value, origin } = &settings.store;
    if !value.has_secret() {
        return;
    }
    match origin {
        Origin::Flag => output::warn(
            json,
            "the password in --store can be read by everybody on this machine; put the URL into HOLDTIGHT_STORE",
        ),
        Origin::File(path) if is_readable_by_others(path) => {
            let path = path.display();
            output::warn(
                json,
                format_args!(
                    "the password in {path} can be read by everybody on this machine; chmod o-r {path}"
                ),
            );
        }
        _ => {}
    }
}

#[cfg(unix)]
fn is_readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn is_readable_by_others(_: &Path) -> bool {
    false
}

/// Refuses keys that no store takes, before anything is asked of the chosen one.
pub(crate) fn check_keys<'a>(keys: impl IntoIterator<Item = &'a String>) -> Result<(), Failure> {
    for key in keys {
        // Which form the store has is not known yet: it is refused if it is wrong in both.
        Key::new(key).or_else(|error| Key::with_form(key, KeyForm::Verbatim).map_err(|_| error))?;
    }
    Ok(())
}

/// The chosen store and who chose it, for people.
pub(crate) fn place(settings: &Settings) -> String {
    format!("{} (from {})", settings.store.value, settings.store.origin)
}

/// Starts to build locks on the chosen store.
pub(crate) fn builder(settings: &Settings) -> Builder<ByUrl> {
    holdtight::builder(settings.store.value.clone())
}

/// Locks on the chosen store.
pub(crate) async fn connect(settings: &Settings) -> Result<DistributedLock, Failure> {
    Ok(builder(settings).connect().await?)
}

/// How long a call that may wait asks again for a store that cannot be reached: as long as the
/// library does later on.
const OUTAGE: Duration = Duration::from_secs(5);

/// How long a call that waits for `wait` at most, or for ever, may take to connect.
pub(crate) fn patience(nonblock: bool, wait: Option<Duration>) -> Duration {
    if nonblock { Duration::ZERO } else { wait.map_or(OUTAGE, |wait| wait.min(OUTAGE)) }
}

/// The store itself, if it is one of files: it knows more than can be asked of every store.
pub(crate) fn files(url: &StoreUrl) -> Result<Option<Arc<FileStore>>, LockError> {
    if url.scheme() != "file" {
        return Ok(None);
    }
    Ok(Some(Arc::new(FileStore::open_blocking(Config::from_url(url.expose())?)?)))
}

/// Refuses a store that ends with this process, where a lock would end with it before anybody could
/// use it.
pub(crate) fn must_outlive_us(settings: &Settings) -> Result<(), Failure> {
    if settings.store.value.scheme() == "memory" {
        return Err(Failure::usage(
            "locks in memory: end with this command; choose a store that lasts, such as file:",
        ));
    }
    Ok(())
}
