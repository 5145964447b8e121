//! From a URL to a store: one table, a row for each kind of store.
//!
//! Rows of stores that were not compiled in stay in the table, so that the error names the feature
//! to switch on.

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

/// The way to open a store, if its feature is on.
macro_rules! compiled {
    ($feature:literal, $open:path) => {{
        #[cfg(feature = $feature)]
        let open: Option<fn(&StoreUrl) -> Opening<'_>> = Some($open);
        #[cfg(not(feature = $feature))]
        let open = None;
        open
    }};
}

/// All kinds of stores, in the order that messages list them.
const STORES: &[Row] = &[
    Row { schemes: &["file"], feature: "file", open: compiled!("file", file) },
    Row { schemes: &["memory"], feature: "", open: Some(memory) },
    Row {
        schemes: &[
            "redis",
            "rediss",
            "redis+unix",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
            "valkey",
            "valkeys",
            "valkey+unix",
            "valkey+sentinel",
            "valkeys+sentinel",
            "valkey+cluster",
            "valkeys+cluster",
        ],
        feature: "redis",
        open: compiled!("redis", redis),
    },
    Row {
        schemes: &["postgres", "postgresql"],
        feature: "postgres",
        open: compiled!("postgres", postgres),
    },
    Row { schemes: &["etcd", "etcds"], feature: "etcd", open: compiled!("etcd", etcd) },
    Row {
        schemes: &["memcached", "memcached+unix"],
        feature: "memcached",
        open: compiled!("memcached", memcached),
    },
    Row { schemes: &["firestore"], feature: "firestore", open: compiled!("firestore", firestore) },
];

/// Opens the store that `url` names.
///
/// Most programs call [`connect`](crate::connect) instead; this is for those that
/// wrap a store, or share one between several [`DistributedLock`](crate::DistributedLock)s.
///
/// # Errors
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a URL that names no store, with
/// the ones that exist; what the store reports otherwise. Secrets of the URL are never shown.
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

/// The first scheme of each kind, and the features of those that are not compiled in.
fn known() -> String {
    let names = STORES.iter().map(|row| match row.open {
        Some(_) => format!("{}:", row.schemes[0]),
        None => format!("{}: (with the feature `{}`)", row.schemes[0], row.feature),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Creates or upgrades what the store that `url` names needs before it can be used. Returns whether
/// there was anything to do: only PostgreSQL has a schema.
///
/// Safe to call again, and by many at once.
///
/// # Errors
/// As [`open`].
pub async fn migrate(url: &StoreUrl) -> Result<bool, LockError> {
    #[cfg(feature = "postgres")]
    if url.scheme().starts_with("postgres") {
        holdtight_postgres::migrate(url.expose()).await?;
        return Ok(true);
    }
    open(url).await.map(|_| false)
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

#[cfg(feature = "file")]
fn file(url: &StoreUrl) -> Opening<'_> {
    Box::pin(async {
        let config = holdtight_file::Config::from_url(url.expose())?;
        Ok(Arc::new(holdtight_file::FileStore::open(config).await?) as Arc<dyn Backend>)
    })
}

#[cfg(feature = "redis")]
fn redis(url: &StoreUrl) -> Opening<'_> {
    Box::pin(async {
        Ok(Arc::new(holdtight_redis::RedisStore::connect(url.expose()).await?) as Arc<dyn Backend>)
    })
}

#[cfg(feature = "etcd")]
fn etcd(url: &StoreUrl) -> Opening<'_> {
    Box::pin(async {
        Ok(Arc::new(holdtight_etcd::EtcdStore::connect(url.expose()).await?) as Arc<dyn Backend>)
    })
}

#[cfg(feature = "memcached")]
fn memcached(url: &StoreUrl) -> Opening<'_> {
    Box::pin(async {
        let store = holdtight_memcached::MemcachedStore::connect(url.expose()).await?;
        Ok(Arc::new(store) as Arc<dyn Backend>)
    })
}

#[cfg(feature = "firestore")]
fn firestore(url: &StoreUrl) -> Opening<'_> {
    Box::pin(async {
        let store = holdtight_firestore::FirestoreStore::connect(url.expose()).await?;
        Ok(Arc::new(store) as Arc<dyn Backend>)
    })
}

#[cfg(feature = "postgres")]
fn postgres(url: &StoreUrl) -> Opening<'_> {
    Box::pin(async {
        let store = holdtight_postgres::PostgresStore::connect(url.expose()).await?;
        Ok(Arc::new(store) as Arc<dyn Backend>)
    })
}

#[cfg(test)]
mod tests {
    use holdtight_core::ErrorKind;

    use super::*;

    async fn refusal(url: &str) -> String {
        let error = open(&StoreUrl::new(url).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        error.to_string()
    }

    #[tokio::test]
    async fn an_unknown_scheme_lists_the_known_ones_and_shows_no_secret() {
        let text = refusal("zookeeper://ann:tiger@host").await;
        assert!(text.contains("`zookeeper:`") && text.contains("memory:"), "{text}");
        assert!(text.contains("file:") && !text.contains("tiger"), "{text}");
    }

    #[tokio::test]
    async fn a_withheld_store_is_refused_with_the_way_to_get_it() {
        assert!(refusal("withheld:").await.contains("--pass-store"));
    }

    #[cfg(not(feature = "file"))]
    #[tokio::test]
    async fn a_store_that_is_not_compiled_in_names_its_feature() {
        assert!(refusal("file:/tmp/x").await.contains("feature `file`"));
        assert!(refusal("x:").await.contains("file: (with the feature `file`)"));
    }

    #[cfg(feature = "file")]
    #[tokio::test]
    async fn a_file_url_opens_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let url = StoreUrl::new(format!("FILE:{}", dir.path().join("locks").display())).unwrap();
        assert_eq!(open(&url).await.unwrap().capabilities().name, "file");
    }

    #[tokio::test]
    async fn memory_stores_have_names_and_no_options() {
        for url in ["memory:", "memory://", "memory:a", "memory://a"] {
            assert!(open(&StoreUrl::new(url).unwrap()).await.is_ok(), "{url}");
        }
        for url in ["memory:?x=1", "memory:a/b"] {
            assert!(refusal(url).await.contains("memory:NAME"), "{url}");
        }
    }
}
