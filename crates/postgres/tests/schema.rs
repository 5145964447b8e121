//! The schema: made by many at once, found missing, kept to its names, and usable by a role with
//! few rights.

mod support;

use std::path::Path;
use std::time::Duration;

use holdtight_core::{Attempt, ErrorKind, Extension, Release};
use holdtight_postgres::{PostgresStore, SCHEMA_SQL, migrate};
use holdtight_testkit::servers::Postgres;
use support::{
    LONG, attempt, available, extend, fresh, key, lookup, open, refused, release, secret, take,
};

#[test]
fn the_sql_in_the_documents_is_the_sql_that_is_run() {
    let copy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/stores/postgres.sql");
    let copy = std::fs::read_to_string(copy).unwrap();
    assert!(copy == SCHEMA_SQL, "copy crates/postgres/sql/schema.sql to docs/stores/postgres.sql");
}

#[tokio::test]
async fn connecting_without_the_schema_says_what_to_run() {
    if !available() {
        return;
    }
    let server = Postgres::shared().await;
    for options in
        ["schema=nowhere", "schema=public&table=nothing", "layout=syncguard&table=nothing"]
    {
        let url = format!("{}?{options}", server.url());
        let text = refused(PostgresStore::connect(&url).await, ErrorKind::InvalidConfig);
        assert!(text.contains("holdtight migrate"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_may_migrate_at_once_and_again_without_harm() {
    if !available() {
        return;
    }
    let server = Postgres::shared().await;
    for options in
        ["schema=crowded", "schema=crowded&table=other", "schema=crowded&layout=syncguard"]
    {
        let url = format!("{}?{options}", server.url());
        let mut crowd = tokio::task::JoinSet::new();
        for _ in 0..12 {
            let url = url.clone();
            crowd.spawn(async move { migrate(&url).await });
        }
        while let Some(done) = crowd.join_next().await {
            done.unwrap().unwrap();
        }
        let store = open(&url).await;
        let (owner, lease) = take(&store, &key("kept"), LONG).await;
        migrate(&url).await.unwrap();
        let kept =
            lookup(&store, &key("kept")).await.unwrap().expect("a lock outlives a migration");
        assert_eq!(kept.fence, Some(lease.fence));
        assert_eq!(release(&store, &key("kept"), &owner).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn a_schema_from_the_future_is_left_alone() {
    if !available() {
        return;
    }
    let (server, url) = fresh("future").await;
    server.sql("UPDATE future.locks_meta SET version = 3").unwrap();
    let text = refused(migrate(&url).await, ErrorKind::InvalidConfig);
    assert!(text.contains("newer"), "{text}");
    assert_eq!(server.sql("SELECT version FROM future.locks_meta").unwrap(), "3");
    let text = refused(PostgresStore::connect(&url).await, ErrorKind::InvalidConfig);
    assert!(text.contains("version 3"), "{text}");
}

#[tokio::test]
async fn a_role_with_execute_alone_can_lock_and_cannot_read_the_secrets_of_others() {
    if !available() {
        return;
    }
    let (server, url) = fresh("rights").await;
    server.sql("CREATE ROLE clerk LOGIN").unwrap();
    let clerk = url.replace("postgres@", "clerk@");
    let text = refused(PostgresStore::connect(&clerk).await, ErrorKind::AuthFailed);
    assert!(text.contains("USAGE") && text.contains("EXECUTE"), "{text}");

    // As documented.
    server.sql("GRANT USAGE ON SCHEMA rights TO clerk").unwrap();
    server.sql("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA rights TO clerk").unwrap();
    let store = open(&clerk).await;
    let work = key("work");
    let (owner, _) = take(&store, &work, LONG).await;
    assert!(matches!(attempt(&store, &work, &secret(), LONG).await, Ok(Attempt::Busy(_))));
    assert!(matches!(extend(&store, &work, &owner, LONG).await, Ok(Extension::Extended(_))));
    assert!(lookup(&store, &work).await.unwrap().is_some());
    store.sweep(Duration::ZERO).await.unwrap();
    for forbidden in [
        "SELECT secret FROM rights.locks",
        "UPDATE rights.locks SET fence = 0",
        "DELETE FROM rights.locks",
        "TRUNCATE rights.locks",
        "UPDATE rights.locks_meta SET high_water = 0",
        "CREATE TABLE rights.mine ()",
        "DROP FUNCTION rights.locks_version()",
    ] {
        let said = server.sql(&format!("SET ROLE clerk; {forbidden}")).expect_err(forbidden);
        assert!(
            said.contains("permission denied") || said.contains("must be owner"),
            "{forbidden}: {said}"
        );
    }
    assert_eq!(release(&store, &work, &owner).await.unwrap(), Release::Released);
    refused(migrate(&clerk).await, ErrorKind::AuthFailed);
}

#[tokio::test]
async fn no_search_path_can_put_other_tables_functions_or_operators_under_us() {
    if !available() {
        return;
    }
    for layout in ["native", "syncguard"] {
        let server = Postgres::shared().await;
        let (schema, role, trap) =
            (format!("path_{layout}"), format!("victim_{layout}"), format!("trap_{layout}"));
        let url = format!("{}?schema={schema}&layout={layout}", server.url());
        migrate(&url).await.unwrap();
        // Everything that a statement of ours might find by its bare name first.
        server
            .sql(&format!(
                "CREATE SCHEMA {trap};
                 CREATE TABLE {trap}.locks (LIKE pg_catalog.pg_class);
                 CREATE TABLE {trap}.syncguard_locks (LIKE pg_catalog.pg_class);
                 CREATE FUNCTION {trap}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '1970-01-01' $$;
                 CREATE FUNCTION {trap}.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'trapped' $$;
                 CREATE FUNCTION {trap}.hashtext(text) RETURNS integer LANGUAGE sql AS $$ SELECT 0 $$;
                 CREATE FUNCTION {trap}.always(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
                 CREATE OPERATOR {trap}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {trap}.always);
                 CREATE FUNCTION {trap}.never(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
                 CREATE OPERATOR {trap}.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = {trap}.never);
                 CREATE FUNCTION {trap}.never(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
                 CREATE OPERATOR {trap}.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = {trap}.never);
                 CREATE ROLE {role} LOGIN SUPERUSER;
                 ALTER ROLE {role} SET search_path = {trap}, pg_catalog;"
            ))
            .unwrap();
        let store = open(&url.replace("postgres@", &format!("{role}@"))).await;
        let (one, two) = (key("one"), key("two"));
        let (owner, lease) = take(&store, &one, LONG).await;
        let other = take(&store, &two, LONG).await.0;
        assert!(lease.ttl > LONG / 2 && lease.fence.get() > 1_700_000_000_000, "{lease:?}");
        assert!(matches!(attempt(&store, &one, &secret(), LONG).await, Ok(Attempt::Busy(_))));
        assert_eq!(release(&store, &one, &secret()).await.unwrap(), Release::NotHeld);
        assert_eq!(extend(&store, &one, &other, LONG).await.unwrap(), Extension::NotHeld);
        assert!(matches!(extend(&store, &one, &owner, LONG).await, Ok(Extension::Extended(_))));
        assert_eq!(release(&store, &one, &owner).await.unwrap(), Release::Released);
        assert!(lookup(&store, &two).await.unwrap().is_some(), "the other key is still held");
    }
}

#[tokio::test]
async fn a_sweep_that_leaves_no_row_gives_the_space_of_table_and_index_back() {
    if !available() {
        return;
    }
    let (server, url) = fresh("space").await;
    let store = open(&url).await;
    let held = key("held");
    let (owner, before) = take(&store, &held, LONG).await;
    let many = "INSERT INTO space.locks (key, secret, fence, granted_at, expires_at, owner) \
                SELECT 'k' || n, '', 1, now(), now() - interval '1 hour', '' FROM generate_series(1, 40000) AS n";
    let size = || -> u64 {
        server.sql("SELECT pg_total_relation_size('space.locks')").unwrap().parse().unwrap()
    };
    server.sql(many).unwrap();
    assert!(size() > 2_000_000, "the test must be able to fail");
    // While anything is held, rows go and pages are kept for the next keys.
    assert_eq!(store.sweep(Duration::ZERO).await.unwrap(), 40_000);
    assert_eq!(
        lookup(&store, &held).await.unwrap().and_then(|held| held.fence),
        Some(before.fence)
    );
    assert_eq!(release(&store, &held, &owner).await.unwrap(), Release::Released);
    // The last row goes. An autovacuum that happens to be at work makes one sweep pass the chance
    // by.
    server.sql(many).unwrap();
    support::eventually("the space is given back", async || {
        store.sweep(Duration::ZERO).await.unwrap();
        (size() < 100_000).then_some(())
    })
    .await;
    assert!(take(&store, &held, LONG).await.1.fence > before.fence);
}

#[tokio::test]
async fn a_missing_row_of_the_second_table_is_named_and_nothing_is_granted() {
    if !available() {
        return;
    }
    let (server, url) = fresh("rowless").await;
    // One connection, opened before: a new one would already be refused by its greeting.
    let store = open(&format!("{url}&connections=1")).await;
    server.sql("DELETE FROM rowless.locks_meta").unwrap();
    let text = refused(attempt(&store, &key("k"), &secret(), LONG).await, ErrorKind::Internal);
    assert!(text.contains("locks_meta"), "{text}");
    migrate(&url).await.unwrap();
    take(&store, &key("k"), LONG).await;
}
