//! Memcached: one connection, requests pipelined; look, add, delete by the CAS number that the add
//! was answered with.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::OWNER;
use crate::Failure;

type Waiting = oneshot::Sender<String>;

#[derive(Clone)]
pub(crate) struct Raw {
    requests: mpsc::Sender<(String, Waiting)>,
}

impl Raw {
    pub(crate) async fn connect(port: u16) -> Result<Self, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (input, mut output) = stream.into_split();
        let (requests, mut asked) = mpsc::channel::<(String, Waiting)>(1024);
        let (sent, waiting) = mpsc::unbounded_channel::<Waiting>();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while asked.recv_many(&mut batch, 1024).await > 0 {
                let mut bytes = String::new();
                for (request, answer) in batch.drain(..) {
                    bytes.push_str(&request);
                    // Refused only when the reader is gone, who then drops the answer.
                    let _ = sent.send(answer);
                }
                if output.write_all(bytes.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        tokio::spawn(read(BufReader::new(input), waiting));
        Ok(Self { requests })
    }

    /// The first line of the answer.
    async fn ask(&self, request: String) -> Result<String, Failure> {
        let (answer, said) = oneshot::channel();
        self.requests.send((request, answer)).await.map_err(|_| "the connection is closed")?;
        Ok(said.await?)
    }

    pub(crate) async fn pair(self, key: String) -> Result<(), Failure> {
        let look = format!("mg raw:{key} v c t\r\n");
        if !self.ask(look).await?.starts_with("EN") {
            return Err("a key of its own was busy".into());
        }
        let add = format!("ms raw:{key} {} ME T32 c\r\n{OWNER}\r\n", OWNER.len());
        let stored = self.ask(add).await?;
        if !stored.starts_with("HD") {
            return Err("the lock was not stored".into());
        }
        let cas = stored.split_whitespace().find_map(|word| word.strip_prefix('c'));
        let cas = cas.ok_or("a value without its number")?;
        if !self.ask(format!("md raw:{key} C{cas}\r\n")).await?.starts_with("HD") {
            return Err("its own lock was not there".into());
        }
        Ok(())
    }
}

/// Answers come in the order of the requests.
async fn read(
    mut stream: BufReader<tokio::net::tcp::OwnedReadHalf>,
    mut waiting: mpsc::UnboundedReceiver<Waiting>,
) {
    while let Some(answer) = waiting.recv().await {
        let mut line = String::new();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        if let Some(rest) = line.strip_prefix("VA ") {
            let length = rest.split_whitespace().next().and_then(|word| word.parse().ok());
            let mut value = vec![0; length.unwrap_or(0) + 2];
            if stream.read_exact(&mut value).await.is_err() {
                return;
            }
        }
        // Whoever asked may be gone.
        let _ = answer.send(line);
    }
}
