//! Making the tables and functions: the SQL text, its names, and running it.
//!
//! The text stands in `sql/schema.sql`, readable by whoever has to approve it;
//! `docs/stores/postgres.sql` is a copy.

use std::time::Duration;

use holdtight_core::LockError;

use crate::config::{Layout, PostgresConfig};
use crate::connect::Connector;
use crate::error::{Phase, from_driver};
use crate::syncguard;

/// How long making the tables may take: it waits for other migrations, and for whoever has a table
/// locked.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// The whole schema with its default names, for people who run SQL by hand.
pub const SCHEMA_SQL: &str = include_str!("../sql/schema.sql");

/// Creates or upgrades the tables and functions that `url` names.
///
/// Does nothing if they are up to date. Safe when many processes do it at once. Needs a role that
/// may create a schema and owns what is in it; programs that lock need far less, see
/// `docs/stores/postgres.md`.
///
/// # Errors
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a bad URL or a schema that is
/// newer than this program, [`AuthFailed`](holdtight_core::ErrorKind::AuthFailed) if the role lacks
/// rights, and whatever connecting can end with.
///
/// # Cancel safety
/// The schema is made in one transaction: wholly or not at all.
pub async fn migrate(url: &str) -> Result<(), LockError> {
    migrate_with(PostgresConfig::from_url(url)?).await
}

/// The same with a configuration that was already read.
///
/// # Errors
/// As [`migrate`].
///
/// # Cancel safety
/// As [`migrate`].
pub async fn migrate_with(config: PostgresConfig) -> Result<(), LockError> {
    let sql = match config.layout {
        Layout::Native => render(&config),
        Layout::Syncguard => syncguard::schema(&config),
    };
    let link = Connector::new(config)?.connect_bare().await?;
    // Several statements in one simple query are one transaction.
    tokio::time::timeout(MIGRATION_TIMEOUT, link.client.batch_execute(&sql))
        .await
        .map_err(|_| {
            LockError::ambiguous(format!(
                "the migration was not over after {MIGRATION_TIMEOUT:?}: it waits for another one, or for a table that \
                 somebody has locked; run it again, it is safe"
            ))
        })?
        .map_err(|error| from_driver(&error, Phase::Write))
}

/// The schema under other names. They were checked: nothing in them needs escaping.
fn render(config: &PostgresConfig) -> String {
    let (schema, table) = (&config.schema, &config.table);
    SCHEMA_SQL
        .replace("\"holdtight\".\"locks", &format!("\"{schema}\".\"{table}"))
        .replace("\"holdtight\"", &format!("\"{schema}\""))
        .replace("'locks_'", &format!("'{table}_'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_leave_no_trace_of_the_default_ones() {
        let config = PostgresConfig::from_url("postgres://h/d?schema=s1&table=t1").unwrap();
        let sql = render(&config);
        let code: String = sql
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"))
            .collect::<Vec<_>>()
            .join("\n");
        assert!(!code.contains("\"holdtight\"") && !code.contains("locks_"), "{code}");
        assert!(code.contains("\"s1\".\"t1_acquire\""));
        let default = PostgresConfig::from_url("postgres://h/d").unwrap();
        assert_eq!(render(&default), SCHEMA_SQL);
    }

    #[test]
    fn every_table_and_function_is_named_with_its_schema() {
        for line in SCHEMA_SQL.lines().filter(|line| !line.trim_start().starts_with("--")) {
            for word in ["FROM locks", "INTO locks", "UPDATE locks", "JOIN locks", " locks_"] {
                assert!(!line.contains(word), "unqualified: {line}");
            }
        }
        let functions = SCHEMA_SQL.matches("CREATE OR REPLACE FUNCTION").count();
        let pinned = SCHEMA_SQL.matches("SET search_path = pg_catalog, pg_temp").count();
        assert_eq!(functions, pinned, "every function pins its search_path");
    }
}
