//! Ports on the loopback that nobody listens on.

use std::net::TcpListener;

/// Below the range from which the kernel takes ports for outgoing connections, so that no client of
/// any test can sit on one; and low enough that the bus of a Redis Cluster, at port + 10000, is
/// below it as well.
const PORTS: std::ops::Range<u16> = 11_000..22_000;

/// A port on 127.0.0.1 that is free now, and whose neighbour 10000 higher is too.
///
/// Somebody else may take it before it is used: starting a server tries several.
///
/// # Panics
/// When a thousand ports in a row are taken.
pub fn free_port() -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    (0..1000)
        .map(|_| fastrand::u16(PORTS))
        .find(|&port| free(port) && free(port + 10_000))
        .expect("no free port on 127.0.0.1")
}
