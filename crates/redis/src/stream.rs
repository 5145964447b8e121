//! Opens the way to a server: TCP, TLS over it, or a Unix socket, with the settings that a lock
//! needs.

use std::io;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ConnectionAddr, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::config::RedisConfig;

/// Bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// Opens a stream to `address`; with TLS if the settings or the address say so.
pub(crate) async fn open(
    address: &ConnectionAddr,
    config: &RedisConfig,
) -> Result<Box<dyn Duplex>, RedisError> {
    match address {
        ConnectionAddr::Tcp(host, port) if !config.tls => {
            Ok(Box::new(tcp(host, *port, config).await?))
        }
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            let stream = tcp(host, *port, config).await?;
            #[cfg(feature = "tls")]
            return Ok(Box::new(crate::tls::over(stream, host, config).await?));
            #[cfg(not(feature = "tls"))]
            {
                drop(stream);
                Err((
                    redis::ErrorKind::InvalidClientConfig,
                    "this program was built without TLS; build it with the feature `tls`",
                )
                    .into())
            }
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
        _ => {
            Err((redis::ErrorKind::InvalidClientConfig, "this kind of address is not supported")
                .into())
        }
    }
}

async fn tcp(host: &str, port: u16, config: &RedisConfig) -> io::Result<TcpStream> {
    // Tries all addresses of the name, one after the other.
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
    socket.set_tcp_keepalive(&keepalive)?;
    // A path that swallows what is sent is noticed even while nobody waits for an answer.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(config.timeout * 2 + Duration::from_secs(1)))?;
    #[cfg(not(target_os = "linux"))]
    let _ = config;
    Ok(stream)
}
