//! A server that answers nonsense: every answer is an error, none is a grant, no call hangs and
//! nothing panics.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use holdtight_core::{Attempt, Backend, ErrorKind, Extension, Intent, Release};
use holdtight_redis::RedisStore;
use support::{LONG, PATIENCE, attempt, extend, key, secret};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What it says instead of the truth, on the wire.
const NONSENSE: &[&str] = &[
    "+OK\r\n",
    ":1\r\n",
    "$-1\r\n",
    "*0\r\n",
    "*-1\r\n",
    "_\r\n",
    "#t\r\n",
    "%0\r\n",
    "*2\r\n$1\r\nG\r\n$1\r\n7\r\n",
    "*5\r\n$1\r\nG\r\n$1\r\n7\r\n$3\r\n123\r\n:60000\r\n:-1\r\n",
    // Not the protocol at all, or cut short and gone.
    "HTTP/1.1 400 Bad Request\r\n\r\n",
    "*99999999999\r\n",
    "$-5\r\n",
    "$99999999999999999999\r\nx",
    "*5\r\n$1\r\nG\r\n",
    "LONG",
    "",
    "-ERR unknown command, with args beginning with: SECRET\r\n",
    "-NOSCRIPT no\r\n",
    "-MOVED 1 10.0.0.1:1\r\n",
    "-ASK 1 10.0.0.1:1\r\n",
    "-\r\n",
];

/// Texts that no script gives; `ID` stands for the right id.
const TEXTS: &[&str] = &[
    "",
    "G",
    "G\nID",
    "X\nID",
    "G\nID\n5",
    "G ID 5 60000 -1",
    // Another request's grant, release and extension.
    "G\n7\n123\n60000\n-1",
    "G\nID0\n123\n60000\n-1",
    "R\n7",
    "E\n7\n123\n60000",
    // Right id, wrong content.
    "G\nID\n\n60000\n-1",
    "G\nID\n-1\n60000\n-1",
    "G\nID\n99999999999999999999\n60000\n-1",
    "G\nID\n123\n-60000\n-1",
    "G\nID\n123\n6e4\n-1",
    "G\nID\n123\n60000\n-1\n1",
    "G\nID\n123\n60000",
    "R\nID\n",
    "R\nID\n1",
    "E\nID",
    "E\nID\n1\n1\n1\n1",
    "L\nID",
    // Answers to several callers: for none of them, too few, a letter that there is not, more than
    // there are.
    "A\nID",
    "A\nID\nG\n123\n60000\n-1",
    "A\nID\nG\n123\n60000\n-1\nX\n123\n60000\n-1",
    "A\nID\nR",
    "MANY",
];

/// The answer number `place` of both lists.
fn nonsense(place: usize, id: &str, secret: &str) -> String {
    match NONSENSE.get(place) {
        // Longer than any answer may be.
        Some(&"LONG") => bulk(&"x".repeat(2 << 20)),
        Some(raw) => raw.replace("SECRET", secret),
        None => match TEXTS[place - NONSENSE.len()] {
            "MANY" => bulk(&format!("A\n{id}{}", "\nG\n123\n60000\n-1".repeat(100))),
            text => bulk(&text.replace("ID", id)),
        },
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// A fake server: honest until `said` points into the list.
async fn serve(listener: TcpListener, said: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(converse(stream, Arc::clone(&said)));
    }
}

async fn converse(stream: TcpStream, said: Arc<AtomicUsize>) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    while let Some(command) = command(&mut read).await? {
        let answer = match command[0].as_str() {
            "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
            "SUBSCRIBE" => format!(
                ">3\r\n$9\r\nsubscribe\r\n${}\r\n{}\r\n:1\r\n",
                command[1].len(),
                command[1]
            ),
            "INFO" => "$36\r\nredis_version:7.0.15\r\nrole:master\r\n \r\n".to_owned(),
            "EVAL" | "EVALSHA" => {
                let keys: usize = command[2].parse().unwrap();
                let id = &command[3 + keys];
                match said.load(Ordering::SeqCst) {
                    // An acquire for somebody who does not wait has two keys and four arguments, a
                    // release two of both.
                    0 if command.len() == 3 + 2 + 4 || keys == 3 => {
                        bulk(&format!("G\n{id}\n123\n5000\n-1"))
                    }
                    0 if keys == 2 => bulk(&format!("R\n{id}")),
                    0 => bulk(&format!("E\n{id}\n123\n5000")),
                    place => nonsense(place - 1, id, &command[4 + keys]),
                }
            }
            _ => "+OK\r\n".to_owned(),
        };
        write.write_all(answer.as_bytes()).await?;
        // An answer that is cut short is followed by the end.
        if said.load(Ordering::SeqCst) > 0 && !answer.ends_with("\r\n") || answer.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}

/// One command: an array of texts.
async fn command(
    read: &mut (impl tokio::io::AsyncBufRead + Unpin),
) -> std::io::Result<Option<Vec<String>>> {
    let mut line = String::new();
    if read.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let mut words = Vec::new();
    for _ in 0..line[1..].trim().parse::<usize>().unwrap() {
        line.clear();
        read.read_line(&mut line).await?;
        let mut word = vec![0; line[1..].trim().parse::<usize>().unwrap() + 2];
        read.read_exact(&mut word).await?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).unwrap());
    }
    Ok(Some(words))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_an_error_and_never_a_grant() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url =
        format!("redis://{}?timeout=300ms&connect_timeout=2s", listener.local_addr().unwrap());
    let said = Arc::new(AtomicUsize::new(0));
    let server = tokio::spawn(serve(listener, Arc::clone(&said)));
    // The short timeout is for answers that never come; a starved machine may be late with those
    // that do.
    let mut store = None;
    support::until("the store connects", async || {
        store = RedisStore::connect(&url).await.ok();
        store.is_some()
    })
    .await;
    let store = Arc::new(store.unwrap());
    let (key, me) = (key("k"), secret());
    for place in 0..NONSENSE.len() + TEXTS.len() {
        let mut nonsense = nonsense(place, "ID", "SECRET");
        nonsense.truncate(100);
        said.store(place + 1, Ordering::SeqCst);
        let step = async {
            let granted = attempt(&store, &key, &me, Intent::Queue).await;
            assert!(!matches!(granted, Ok(Attempt::Granted(_))), "{nonsense:?}: {granted:?}");
            let extended = extend(&store, &key, &me, LONG).await;
            assert!(!matches!(extended, Ok(Extension::Extended(_))), "{nonsense:?}: {extended:?}");
            let released = Arc::clone(&store).release(key.clone(), me.clone()).await;
            assert!(!matches!(released, Ok(Release::Released)), "{nonsense:?}: {released:?}");
            let looked = Arc::clone(&store).lookup(key.clone()).await;
            let mut errors = vec![granted.err(), extended.err(), released.err(), looked.err()];
            // The same for many at once, whose steps go out together.
            let crowd: Vec<_> = (0..24)
                .map(|n| {
                    let (store, key, me) =
                        (Arc::clone(&store), self::key(&format!("k{n}")), me.clone());
                    tokio::spawn(async move {
                        (
                            attempt(&store, &key, &me, Intent::Try).await,
                            store.release(key, me).await,
                        )
                    })
                })
                .collect();
            for one in crowd {
                let (granted, released) = one.await.unwrap();
                assert!(!matches!(granted, Ok(Attempt::Granted(_))), "{nonsense:?}: {granted:?}");
                assert!(!matches!(released, Ok(Release::Released)), "{nonsense:?}: {released:?}");
                errors.extend([granted.err(), released.err()]);
            }
            for error in errors.into_iter().flatten() {
                let text = format!("{error} {error:?}");
                assert!(!text.contains(me.expose()), "{text}");
                assert_ne!(error.kind(), ErrorKind::Lost);
            }
        };
        tokio::time::timeout(PATIENCE, step)
            .await
            .unwrap_or_else(|_| panic!("{nonsense:?} makes a call hang"));
        // Honest again: the store recovers.
        said.store(0, Ordering::SeqCst);
        support::until("the store works again", async || {
            attempt(&store, &key, &me, Intent::Try).await.is_ok()
        })
        .await;
    }
    server.abort();
}
