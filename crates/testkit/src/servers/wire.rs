//! The few bytes it takes to ask a server whether it is there and who it is.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends `request` to a port of the loopback and reads until `whole` has seen enough, or the peer
/// closes.
pub(super) async fn ask(
    port: u16,
    request: &[u8],
    whole: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let asking = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request).await?;
        let mut answer = Vec::new();
        while !whole(&answer) && answer.len() < 1 << 20 {
            if stream.read_buf(&mut answer).await? == 0 {
                break;
            }
        }
        Ok(answer)
    };
    tokio::time::timeout(Duration::from_secs(5), asking).await?
}

/// What follows the first reply of the Redis protocol in `bytes`; `None` while that is incomplete.
pub(super) fn after_resp(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (head, rest) = (bytes.get(..end)?, bytes.get(end + 2..)?);
    let (kind, number) = head.split_first()?;
    let number = || str::from_utf8(number).ok()?.parse::<i64>().ok();
    match kind {
        b'$' => match usize::try_from(number()?) {
            Ok(length) => rest.get(length + 2..),
            Err(_) => Some(rest),
        },
        b'*' => (0..number()?).try_fold(rest, |rest, _| after_resp(rest)),
        _ => Some(rest),
    }
}

/// One HTTP request; the whole answer as text, head and body.
pub(super) async fn http(port: u16, verb: &str, path: &str, body: &str) -> io::Result<String> {
    let request = format!(
        "{verb} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = ask(port, request.as_bytes(), |_| false).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Whether a PostgreSQL server or pooler lets `postgres` in on `port`.
pub(super) async fn postgres_lets_in(port: u16) -> bool {
    let parameters = b"user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(8 + parameters.len()).unwrap_or(0);
    let mut startup = length.to_be_bytes().to_vec();
    startup.extend(196_608_u32.to_be_bytes());
    startup.extend(parameters);
    ask(port, &startup, |answer| !answer.is_empty())
        .await
        .is_ok_and(|answer| answer.first() == Some(&b'R'))
}
