//! TLS: each mode accepts what it should, refuses what it should, and says why.
#![cfg(target_os = "linux")]

mod support;

use holdtight_core::ErrorKind;
use holdtight_postgres::{PostgresStore, migrate};
use holdtight_testkit::servers::Directory;
use support::certificates::certificates;
use support::server::Server;
use support::{LONG, available, key, open, refused, take};

#[tokio::test]
async fn every_mode_checks_what_it_says() {
    if !available() {
        return;
    }
    let place = Directory::new();
    certificates(place.path());
    let file = |name: &str| place.path().join(name).display().to_string();
    let settings = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", file("server.pem")),
        format!("ssl_key_file={}", file("server.key")),
    ];
    let server = Server::start(&settings.each_ref().map(String::as_str));
    migrate(&server.url()).await.unwrap();
    let url = |host: &str, options: &str| {
        format!(
            "postgres://postgres@{host}:{}/postgres?application_name=tls_test&{options}",
            server.port()
        )
    };
    let (ours, other) =
        (format!("sslrootcert={}", file("ours.pem")), format!("sslrootcert={}", file("other.pem")));

    for (host, options, encrypted) in [
        ("localhost", "sslmode=disable".to_owned(), false),
        ("127.0.0.1", "sslmode=prefer".to_owned(), true),
        ("127.0.0.1", "sslmode=require".to_owned(), true),
        ("127.0.0.1", format!("sslmode=verify-ca&{ours}"), true),
        ("127.0.0.1", format!("sslmode=require&{ours}"), true),
        ("127.0.0.1", ours.clone(), true),
        ("localhost", format!("sslmode=verify-full&{ours}"), true),
    ] {
        let store = open(&url(host, &options)).await;
        take(&store, &key(&options), LONG).await;
        let count = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'tls_test' AND ssl";
        assert_eq!(server.sql(count).unwrap() != "0", encrypted, "{options}");
        drop(store);
        support::eventually("the sessions end", async || {
            let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tls_test'";
            (server.sql(left).as_deref() == Ok("0")).then_some(())
        })
        .await;
    }
    for (host, options) in [
        // Another authority, another name, and the authorities of this machine, which do not know
        // ours.
        ("localhost", format!("sslmode=verify-full&{other}")),
        ("127.0.0.1", format!("sslmode=verify-ca&{other}")),
        ("127.0.0.1", format!("sslmode=require&{other}")),
        ("127.0.0.1", format!("sslmode=verify-full&{ours}")),
        ("localhost", "sslmode=verify-full".to_owned()),
    ] {
        let text =
            refused(PostgresStore::connect(&url(host, &options)).await, ErrorKind::InvalidConfig);
        assert!(text.contains("sslrootcert"), "{options}: {text}");
    }
    let missing = url("localhost", "sslmode=verify-full&sslrootcert=nowhere.pem");
    refused(PostgresStore::connect(&missing).await, ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn a_server_without_tls_is_not_talked_to_in_the_clear_when_tls_was_asked_for() {
    if !available() {
        return;
    }
    let server = holdtight_testkit::servers::Postgres::shared().await;
    let url = format!("{}?sslmode=require", server.url());
    let error = PostgresStore::connect(&url).await.expect_err("no TLS, no connection");
    assert!(error.to_string().contains("TLS"), "{error}");
}
