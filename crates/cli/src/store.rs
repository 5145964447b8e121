//! The store that this call works on: chosen by the settings, and connected to.

use holdtight::{Builder, ByUrl, DistributedLock};

use crate::config::{Origin, Settings};
use crate::exit::Failure;
use crate::output;

/// Warns if the store's URL stands on the command line with a password in it.
pub(crate) fn warn_if_exposed(settings: &Settings) {
    if settings.store.origin == Origin::Flag && settings.store.value.has_secret() {
        output::complain(
            "warning: the password in --store can be read by everybody on this machine; put the URL into HOLDTIGHT_STORE",
        );
    }
}

/// Starts to build locks on the chosen store.
pub(crate) fn builder(settings: &Settings) -> Builder<ByUrl> {
    DistributedLock::builder(settings.store.value.clone())
}

/// Locks on the chosen store.
pub(crate) async fn connect(settings: &Settings) -> Result<DistributedLock, Failure> {
    Ok(builder(settings).connect().await?)
}

/// Refuses a store that ends with this process, where a lock would end with it before anybody could use it.
pub(crate) fn must_outlive_us(settings: &Settings) -> Result<(), Failure> {
    if settings.store.value.scheme() == "memory" {
        return Err(Failure::usage(
            "locks in memory: end with this command; choose a store that lasts, such as file:",
        ));
    }
    Ok(())
}
