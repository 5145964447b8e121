//! Counts and reads the requests that clients send, as the server itself sees them.
//!
//! By `MONITOR`, because every counter that `INFO` has also counts the commands inside scripts.
//! Watching costs the server time: rows that measure time do not watch while they do.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use holdtight_testkit::servers::Redis;
use tokio::runtime::Runtime;

use super::Stage;
use crate::Failure;

/// Watches a server from when it is made until [`end`](Monitor::end).
pub(crate) struct Monitor {
    lines: BufReader<TcpStream>,
    runtime: Arc<Runtime>,
    server: Arc<Redis>,
}

const END: &str = "the watch ends";

impl Monitor {
    pub(crate) fn start(stage: &Stage) -> Result<Self, Failure> {
        let mut stream = TcpStream::connect(("127.0.0.1", stage.server().port()))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::with_capacity(1 << 20, stream);
        let mut answer = String::new();
        lines.read_line(&mut answer)?;
        if answer.trim() != "+OK" {
            return Err(format!("MONITOR was answered {answer}").into());
        }
        let (runtime, server) = (Arc::clone(stage.runtime()), Arc::clone(stage.server()));
        Ok(Self { lines, runtime, server })
    }

    /// Every request that a client sent since the start, each as its words.
    pub(crate) fn end(mut self) -> Result<Vec<Vec<Vec<u8>>>, Failure> {
        self.runtime.block_on(self.server.command(&format!("ECHO \"{END}\"")))?;
        let mut requests = Vec::new();
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line)? == 0 {
                return Err("the server ended the watch".into());
            }
            if line.contains(END) {
                return Ok(requests);
            }
            requests.extend(request(&line));
        }
    }
}

/// The words of a line such as `+1339518083.107412 [0 127.0.0.1:60866] "SET" "a\x01b"`; `None` for
/// a script's own.
fn request(line: &str) -> Option<Vec<Vec<u8>>> {
    let (origin, words) = line.split_once("] ")?;
    if origin.ends_with(" lua") {
        return None;
    }
    let mut found = Vec::new();
    let mut bytes = words.trim_end().bytes();
    while bytes.find(|byte| *byte == b'"').is_some() {
        let mut word = Vec::new();
        loop {
            match bytes.next()? {
                b'"' => break,
                b'\\' => word.push(match bytes.next()? {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    b'x' => {
                        let digits = [bytes.next()?, bytes.next()?];
                        u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                    }
                    other => other,
                }),
                byte => word.push(byte),
            }
        }
        found.push(word);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_word_by_word() {
        let line = "+1.5 [0 127.0.0.1:1] \"SET\" \"a \\\"b\\\"\" \"\\x01\\n\\\\\" \"\"\r\n";
        let words: [&[u8]; 4] = [b"SET", b"a \"b\"", b"\x01\n\\", b""];
        assert_eq!(request(line).unwrap(), words);
    }

    #[test]
    fn what_a_script_calls_is_no_request() {
        assert_eq!(request("+1.5 [0 lua] \"GET\" \"k\"\r\n"), None);
    }
}
