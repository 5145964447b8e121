//! The requests of our library, sent again without it: what a pair costs when only client, wire and
//! server work.
//!
//! They are read off the server while the library takes and gives back one key, so they are always
//! the ones that it sends now. Replayed, they differ in the key alone.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;

use super::{Monitor, Stage};
use crate::Failure;
use crate::load::our_pair;

/// Acquire and release as they were recorded.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    requests: Arc<[Request]>,
}

/// The words of a request, each in the parts between which the key stands.
type Request = Vec<Vec<Vec<u8>>>;

const KEY: &str = "the-recorded-key";

impl Replay {
    /// Records a pair of the library's, and makes sure that its replay takes the lock and gives it
    /// back.
    pub(crate) fn record(stage: &Stage) -> Result<Self, Failure> {
        let lock = stage.lock()?;
        let pair = |key: &str| stage.runtime().block_on(our_pair(lock.clone(), key.to_owned()));
        // What is sent once, such as the scripts themselves, is not recorded.
        pair("warm-up")?;
        let monitor = Monitor::start(stage)?;
        pair(KEY)?;
        let about_the_key = |words: &Vec<Vec<u8>>| words.iter().any(|word| parts(word).len() > 1);
        let requests = monitor.end()?.into_iter().filter(about_the_key);
        let requests =
            requests.map(|words| words.iter().map(|word| parts(word)).collect()).collect();
        let replay = Self { requests };
        replay.prove(stage)?;
        Ok(replay)
    }

    fn prove(&self, stage: &Stage) -> Result<(), Failure> {
        let [acquire, release] = &self.requests[..] else {
            let count = self.requests.len();
            return Err(format!("a pair took {count} requests: it cannot be replayed").into());
        };
        let mut connection = stage.bare()?;
        stage.runtime().block_on(async {
            for (request, held) in [(acquire, 1), (release, 0)] {
                send(&mut connection, request, "proof").await?;
                let exists: i64 = redis::cmd("EXISTS")
                    .arg("holdtight:proof")
                    .query_async(&mut connection)
                    .await?;
                if exists != held {
                    return Err("the replayed requests do not lock".into());
                }
            }
            Ok(())
        })
    }

    /// Takes and gives back `key`.
    pub(crate) async fn pair(
        &self,
        connection: &mut MultiplexedConnection,
        key: &str,
    ) -> Result<(), Failure> {
        for request in &*self.requests {
            send(connection, request, key).await?;
        }
        Ok(())
    }
}

async fn send(
    connection: &mut MultiplexedConnection,
    request: &Request,
    key: &str,
) -> Result<(), Failure> {
    let mut command = redis::Cmd::with_capacity(request.len(), 512);
    let mut word = Vec::new();
    for parts in request {
        word.clear();
        for (n, part) in parts.iter().enumerate() {
            if n > 0 {
                word.extend_from_slice(key.as_bytes());
            }
            word.extend_from_slice(part);
        }
        command.arg(&word[..]);
    }
    let _: redis::Value = command.query_async(connection).await?;
    Ok(())
}

/// A word cut at every place where the recorded key stands in it.
fn parts(word: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    let mut rest = word;
    while let Some(at) = rest.windows(KEY.len()).position(|part| part == KEY.as_bytes()) {
        parts.push(rest[..at].to_vec());
        rest = &rest[at + KEY.len()..];
    }
    parts.push(rest.to_vec());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_cut_at_the_key() {
        assert_eq!(parts(b"holdtight:the-recorded-key:x"), [&b"holdtight:"[..], b":x"]);
        assert_eq!(parts(b"30000"), [b"30000"]);
        assert_eq!(parts(KEY.as_bytes()), [b"", b""]);
    }
}
