//! The commands on a real PostgreSQL server, found by the variables that `psql` uses.

#![cfg(target_os = "linux")]

mod support;

use holdtight_testkit::servers::{Postgres, Program};
use support::Home;

/// A home that knows the server, or `None` where there is no PostgreSQL.
async fn home() -> Option<(Postgres, Home)> {
    if !Program::POSTGRES.available() || !Program::PSQL.available() {
        return None;
    }
    let server = Postgres::start().await;
    let home = Home::new()
        .with("HOLDTIGHT_STORE", "postgres://127.0.0.1/postgres")
        .with("PGPORT", server.port().to_string())
        .with("PGUSER", "postgres");
    Some((server, home))
}

#[tokio::test]
async fn migrate_makes_the_tables_and_then_everything_works() {
    let Some((server, home)) = home().await else { return };
    home.call("status k").refused(64, &["holdtight migrate"]);
    home.call("migrate").succeeded();
    home.call("migrate").succeeded();

    let inner = env!("CARGO_BIN_EXE_holdtight");
    let script = format!(
        "echo fence $HOLDTIGHT_FENCE; {inner} status k --json; {inner} ls; {inner} run -n k true; echo $?"
    );
    let ran = home.call_with(["run", "k", "--reason", "nightly", "--", "sh", "-c", &script]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let mut lines = ran.out.lines();
    let fence = lines.next().unwrap().strip_prefix("fence ").unwrap();
    let status: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!((&status["fence"], &status["reason"]), (&fence.into(), &"nightly".into()));
    assert!(lines.next().unwrap().starts_with("KEY"));
    assert!(lines.next().unwrap().starts_with("k "), "{}", ran.out);
    assert_eq!(lines.next(), Some("75"), "the holder keeps others out: {}", ran.err);

    // Released at the end; the next fence is higher.
    assert_eq!(home.call("status k").code, 1);
    assert_eq!(home.call("ls").succeeded().out, "");
    // On a slow machine these say that they are waiting, for the server's answer.
    let taken = home.call("acquire --json --ttl 1h k");
    assert_eq!(taken.code, 0, "{}", taken.err);
    let taken = taken.json();
    let number = |text: &str| text.parse::<u64>().unwrap();
    assert!(number(taken["fence"].as_str().unwrap()) > number(fence));
    home.call_on("extend - --ttl 2h", taken["token"].as_str().unwrap()).succeeded();
    home.call_on("release -", taken["token"].as_str().unwrap()).succeeded();
    assert_eq!(server.sql("SELECT count(*) FROM holdtight.locks WHERE secret <> ''").unwrap(), "0");
}

#[tokio::test]
async fn doctor_reads_the_settings_of_the_server() {
    let Some((server, home)) = home().await else { return };
    home.call("migrate").succeeded();
    let told = home.call("doctor");
    assert!(told.out.contains("PostgreSQL 1") && told.out.contains("durability"), "{}", told.out);
    assert!(!told.out.contains("unsafe"), "{}", told.out);

    // A server that forgets is refused, and looked at only by those who accept it.
    server.sql("ALTER SYSTEM SET fsync = off").unwrap();
    server.sql("SELECT pg_reload_conf()").unwrap();
    support::eventually("the setting is read", || server.sql("SHOW fsync").as_deref() == Ok("off"));
    home.call("status k").refused(64, &["fsync", "durability=any"]);
    let told = home.call("doctor");
    assert_eq!(told.code, 1, "{}", told.err);
    assert!(told.out.contains("unsafe   durability: fsync is off"), "{}", told.out);
    assert!(told.out.contains("fix: set fsync = on"), "{}", told.out);
    let told = home.call("--json doctor");
    assert_eq!((told.code, &told.json()["level"]), (1, &"unsafe".into()));
    let accepting = home.with("HOLDTIGHT_STORE", "postgres://127.0.0.1/postgres?durability=any");
    let told = accepting.call("doctor");
    assert!(told.out.contains("unsafe   durability: fsync is off"), "{}{}", told.out, told.err);
}

#[tokio::test]
async fn a_password_comes_from_the_environment_and_is_never_shown() {
    let Some((server, home)) = home().await else { return };
    home.call("migrate").succeeded();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'hunter2'").unwrap();
    server.sql("GRANT USAGE ON SCHEMA holdtight TO app").unwrap();
    server.sql("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA holdtight TO app").unwrap();
    let rules = server.process().directory().path().join("data/pg_hba.conf");
    let rules_now = support::read(&rules);
    let asks = format!("host all app 127.0.0.1/32 scram-sha-256\n{rules_now}");
    std::fs::write(&rules, asks).unwrap();
    server.sql("SELECT pg_reload_conf()").unwrap();

    let app = home.with("PGUSER", "app");
    support::eventually("the rules are read", || app.call("ls").code != 0);
    let refused = app.call("ls");
    assert!(refused.err.contains("password"), "{}", refused.err);
    let app = app.with("PGPASSWORD", "wr0ng");
    let refused = app.call("ls");
    assert!(refused.code != 0 && !refused.err.contains("wr0ng"), "{}", refused.err);
    let app = app.with("PGPASSWORD", "hunter2");
    let ran = app.call("run k -- true");
    assert_eq!(ran.code, 0, "{}", ran.err);
    let shown = app.call("doctor");
    assert!(!format!("{}{}{}{}", ran.out, ran.err, shown.out, shown.err).contains("hunter2"));
}
