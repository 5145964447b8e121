//! From a URL to a store: one table, a row for each kind of store.
//!
//! Rows of stores that were not compiled in stay in the table, so that the error names the feature to switch on.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use holdtight_core::{Backend, LockError, MemoryStore};

use crate::url::StoreUrl;

type Opening<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>, LockError>> + Send + 'a>>;

/// One kind of store.
struct Row {
    schemes: &'static [&'static str],
    /// The feature that compiles it in; empty if it is always there.
    feature: &'static str,
    /// `None` if it was not compiled in.
    open: Option<fn(&StoreUrl) -> Opening<'_>>,
}

/// All kinds of stores, in the order that messages list them.
const STORES: &[Row] = &[Row { schemes: &["memory"], feature: "", open: Some(memory) }];

/// Opens the store that `url` names.
///
/// Most programs call [`DistributedLock::connect`](crate::DistributedLock::connect) instead; this is for those that
/// wrap a store, or share one between several [`DistributedLock`](crate::DistributedLock)s.
///
/// # Errors
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a URL that names no store, with the ones that exist;
/// what the store reports otherwise. Secrets of the URL are never shown.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn Backend>, LockError> {
    if url.scheme() == "withheld" {
        return Err(LockError::invalid_config(
            "the URL of the store holds a password and was withheld from this process by \
             `holdtight run`; start that with --pass-store, or set HOLDTIGHT_STORE here",
        ));
    }
    let Some(row) = STORES.iter().find(|row| row.schemes.contains(&url.scheme())) else {
        return Err(LockError::invalid_config(format!(
            "there is no store `{}:`; known: {}",
            url.scheme(),
            known(),
        )));
    };
    match row.open {
        Some(open) => open(url).await,
        None => Err(LockError::invalid_config(format!(
            "this program was built without the store `{}:`; build it with the feature `{}` of \
             holdtight",
            url.scheme(),
            row.feature,
        ))),
    }
}

/// All schemes, and the features of those that are not compiled in.
fn known() -> String {
    let names = STORES.iter().flat_map(|row| {
        row.schemes.iter().map(|scheme| match row.open {
            Some(_) => format!("{scheme}:"),
            None => format!("{scheme}: (with the feature `{}`)", row.feature),
        })
    });
    names.collect::<Vec<_>>().join(", ")
}

fn memory(url: &StoreUrl) -> Opening<'_> {
    Box::pin(async {
        let name = url.rest().strip_prefix("//").unwrap_or(url.rest());
        if name.contains(['?', '#', '/']) {
            return Err(LockError::invalid_config(
                "a memory store has a name and no options: write memory: or memory:NAME",
            ));
        }
        if name.is_empty() {
            return Ok(Arc::new(MemoryStore::new()) as Arc<dyn Backend>);
        }
        Ok(MemoryStore::shared(name) as Arc<dyn Backend>)
    })
}
