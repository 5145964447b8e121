//! Certificates for a test server and its clients, made by `openssl`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::server::Server;

/// Runs openssl in a directory.
fn openssl(place: &Path, arguments: &str) {
    let ran = Command::new("openssl").args(arguments.split(' ')).current_dir(place).output();
    let ran = ran.expect("openssl (apt-get install openssl)");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Two authorities (`ours`, `other`), and by the first one a certificate for the server `localhost`
/// and one for the client `app`.
pub(crate) fn certificates(place: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for authority in ["ours", "other"] {
        openssl(
            place,
            &format!(
                "req -x509 {key} -keyout {authority}.key -out {authority}.pem -days 2 -subj /CN={authority}"
            ),
        );
    }
    std::fs::write(place.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    openssl(place, &format!("req {key} -keyout server.key -out server.csr -subj /CN=localhost"));
    openssl(
        place,
        "x509 -req -in server.csr -CA ours.pem -CAkey ours.key -CAcreateserial -days 2 -out server.pem -extfile names",
    );
    openssl(place, &format!("req {key} -keyout client.key -out client.csr -subj /CN=app"));
    openssl(
        place,
        "x509 -req -in client.csr -CA ours.pem -CAkey ours.key -CAcreateserial -days 2 -out client.pem -extfile names",
    );
    std::fs::set_permissions(place.join("server.key"), std::fs::Permissions::from_mode(0o600))
        .unwrap();
    for file in ["server.key", "server.pem", "ours.pem"] {
        Server::own(&place.join(file));
    }
    // The server, another user, must get as far as its files.
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o711)).unwrap();
}
