//! Who may log in: passwords (SCRAM) from the URL, the driver's configuration and the password
//! file, and client certificates; and what is said to whom may not.
#![cfg(target_os = "linux")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use holdtight_core::{ErrorKind, LockError};
use holdtight_postgres::{PostgresConfig, PostgresStore, migrate};
use holdtight_testkit::servers::Directory;
use support::certificates::certificates;
use support::server::Server;
use support::{LONG, available, key, refused, take};

const PASSWORD: &str = "pa:ss\\wörd?&";
const ENCODED: &str = "pa%3Ass%5Cw%C3%B6rd%3F%26";

/// A server that trusts nobody but its administrator, and the role `app` that may lock.
async fn strict_server(place: &Path) -> Server {
    certificates(place);
    let rules = "host all postgres 127.0.0.1/32 trust\n\
                 hostssl all certified 127.0.0.1/32 cert map=names\n\
                 host all app 127.0.0.1/32 scram-sha-256\n";
    for (name, text) in [("hba", rules), ("ident", "names app certified\n")] {
        std::fs::write(place.join(name), text).unwrap();
        Server::own(&place.join(name));
    }
    let file = |name: &str| place.join(name).display().to_string();
    let settings = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", file("server.pem")),
        format!("ssl_key_file={}", file("server.key")),
        format!("ssl_ca_file={}", file("ours.pem")),
        format!("hba_file={}", file("hba")),
        format!("ident_file={}", file("ident")),
        "password_encryption=scram-sha-256".to_owned(),
    ];
    let server = Server::start(&settings.each_ref().map(String::as_str));
    migrate(&server.url()).await.unwrap();
    server.sql(&format!("CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'")).unwrap();
    server.sql("CREATE ROLE certified LOGIN").unwrap();
    for role in ["app", "certified"] {
        server.sql(&format!("GRANT USAGE ON SCHEMA holdtight TO {role}")).unwrap();
        server
            .sql(&format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA holdtight TO {role}"))
            .unwrap();
    }
    server
}

/// The store locks.
async fn works(store: Result<PostgresStore, LockError>, name: &str) {
    let store = Arc::new(store.unwrap_or_else(|error| panic!("{name}: {error}")));
    assert!(!format!("{store:?}").contains("rd?&"), "no password in Debug");
    take(&store, &key(name), LONG).await;
}

#[tokio::test]
async fn a_password_is_taken_from_the_url_the_driver_or_the_password_file() {
    if !available() {
        return;
    }
    let place = Directory::new();
    let server = strict_server(place.path()).await;
    let port = server.port();
    let tls = format!("sslmode=verify-full&sslrootcert={}/ours.pem", place.path().display());

    works(
        PostgresStore::connect(&format!("postgres://app:{ENCODED}@127.0.0.1:{port}/postgres"))
            .await,
        "url",
    )
    .await;
    // Over TLS the exchange is bound to the channel.
    let url = format!("postgres://app:{ENCODED}@localhost:{port}/postgres?channel_binding=require");
    works(PostgresStore::connect(&format!("{url}&{tls}")).await, "channel binding").await;

    let mut driver = tokio_postgres::Config::new();
    driver.host("localhost").port(port).user("app").password(PASSWORD).dbname("postgres");
    let config = PostgresConfig::from_driver(driver, &tls).unwrap();
    works(PostgresStore::connect_with(config).await, "driver").await;

    let file = place.path().join("passwords");
    let line = PASSWORD.replace('\\', "\\\\").replace(':', "\\:");
    std::fs::write(&file, format!("elsewhere:*:*:app:no\n127.0.0.1:{port}:*:app:{line}\n"))
        .unwrap();
    let silent = format!("postgres://app@127.0.0.1:{port}/postgres?passfile={}", file.display());
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(PostgresStore::connect(&silent).await, ErrorKind::AuthFailed);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    works(PostgresStore::connect(&silent).await, "password file").await;

    for wrong in [":wr0ng@", "@"] {
        let url = format!("postgres://app{wrong}127.0.0.1:{port}/postgres?passfile=nowhere");
        let text = refused(PostgresStore::connect(&url).await, ErrorKind::AuthFailed);
        assert!(text.contains("password") && !text.contains("wr0ng"), "{text}");
    }
}

#[tokio::test]
async fn a_client_certificate_is_a_login() {
    if !available() {
        return;
    }
    let place = Directory::new();
    let server = strict_server(place.path()).await;
    let file = |name: &str| place.path().join(name).display().to_string();
    let url = format!(
        "postgres://certified@localhost:{}/postgres?sslmode=verify-full&sslrootcert={}",
        server.port(),
        file("ours.pem")
    );
    let (cert, key) = (file("client.pem"), file("client.key"));
    works(PostgresStore::connect(&format!("{url}&sslcert={cert}&sslkey={key}")).await, "cert")
        .await;
    // Without one, with one of an authority that the server does not know, and with one of another
    // name.
    let refusal = PostgresStore::connect(&url).await.expect_err("no certificate");
    assert_eq!(refusal.kind(), ErrorKind::AuthFailed, "{refusal}");
    let stranger = format!("{url}&sslcert={}&sslkey={}", file("other.pem"), file("other.key"));
    PostgresStore::connect(&stranger).await.expect_err("a stranger's certificate");
    let server_as_client =
        format!("{url}&sslcert={}&sslkey={}", file("server.pem"), file("server.key"));
    refused(PostgresStore::connect(&server_as_client).await, ErrorKind::AuthFailed);
}
