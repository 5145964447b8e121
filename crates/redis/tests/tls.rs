//! TLS is verified: the certificate's issuer and the server's name.
#![cfg(feature = "tls")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use holdtight_core::{ErrorKind, Release};
use holdtight_redis::RedisStore;
use holdtight_testkit::servers::Redis;
use support::{connect, granted, key, release, secret};

/// A self-signed certificate for 127.0.0.1 and its key.
fn certificate(directory: &Path) -> bool {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(directory.join("key.pem"))
        .arg("-out")
        .arg(directory.join("cert.pem"))
        .stdin(Stdio::null())
        .output();
    made.is_ok_and(|made| made.status.success())
}

/// A directory with a certificate, unless something is missing here.
fn prepared(name: &str) -> Option<std::path::PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    if support::redis_is_missing() {
        return None;
    }
    if !certificate(&directory) {
        assert!(
            !std::env::var("CI").is_ok_and(|ci| ci == "true"),
            "openssl is needed: apt-get install openssl"
        );
        eprintln!("skipped: openssl is not installed; run: apt-get install openssl");
        return None;
    }
    Some(directory)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_for_a_certificate_gets_ours() {
    let Some(directory) = prepared("tls-clients") else { return };
    let port = holdtight_testkit::servers::free_port().to_string();
    let file = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let (cert, private) = (file("cert.pem"), file("key.pem"));
    let arguments = [
        ["--tls-port", &port],
        ["--tls-cert-file", &cert],
        ["--tls-key-file", &private],
        ["--tls-auth-clients", "yes"],
        ["--tls-ca-cert-file", &cert],
    ];
    let _server = Redis::start_with(arguments.as_flattened()).await;
    let url = format!("rediss://127.0.0.1:{port}?tls_ca={cert}");
    let store = connect(&format!("{url}&tls_cert={cert}&tls_key={private}")).await;
    let me = secret();
    granted(&store, &key("k"), &me).await;
    assert_eq!(release(&store, &key("k"), &me).await, Release::Released);

    let error = RedisStore::connect(&url).await.expect_err("we have not shown a certificate");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("tls_cert"), "{error}");
    for (cert, private) in [("/nowhere", private.as_str()), (cert.as_str(), "/nowhere")] {
        let url = format!("{url}&tls_cert={cert}&tls_key={private}");
        let error = RedisStore::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    for wrong in ["tls_ca=/nowhere", "tls_cert=/c&tls_key=/k"] {
        let url = format!("redis://127.0.0.1:{port}?{wrong}");
        let error = RedisStore::connect(&url).await.expect_err("nothing goes out in the clear");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("rediss://"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_server_with_the_right_certificate_and_name_is_believed() {
    let Some(directory) = prepared("tls") else { return };
    let port = holdtight_testkit::servers::free_port().to_string();
    let file = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let (cert, private) = (file("cert.pem"), file("key.pem"));
    let arguments = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &private,
        "--tls-auth-clients",
        "no",
        "--tls-ca-cert-file",
        &cert,
    ];
    let _server = Redis::start_with(&arguments).await;

    let store = connect(&format!("rediss://127.0.0.1:{port}?tls_ca={cert}")).await;
    let me = secret();
    granted(&store, &key("k"), &me).await;
    assert_eq!(release(&store, &key("k"), &me).await, Release::Released);

    for (wrong, why) in [
        (format!("rediss://127.0.0.1:{port}"), "nobody vouches for the certificate"),
        (format!("rediss://localhost:{port}?tls_ca={cert}"), "the certificate has another name"),
        (format!("redis://127.0.0.1:{port}"), "no TLS where TLS is spoken"),
    ] {
        let error = RedisStore::connect(&wrong).await.expect_err(why);
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::InvalidConfig),
            "{why}: {error}"
        );
    }
    let error = RedisStore::connect(&format!("rediss://127.0.0.1:{port}?tls_ca=/nowhere"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}
