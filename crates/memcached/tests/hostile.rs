//! A server that lies: whatever it answers, there is no grant, no panic, and the next call finds a
//! fresh connection.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use holdtight_core::{Attempt, Backend as _, ErrorKind, Extension};
use holdtight_memcached::MemcachedStore;
use support::*;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What the liar says to the requests that matter, by their first two letters; everything else it
/// answers well.
type Lies = Arc<Mutex<Vec<(&'static str, Vec<u8>)>>>;

/// A server that keeps nothing: every read misses and every write succeeds, unless it is told to
/// lie.
struct Liar {
    url: String,
    lies: Lies,
    connections: Arc<AtomicUsize>,
}

impl Liar {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("memcached://{}?timeout=500ms", listener.local_addr().unwrap());
        let (lies, connections) = (Lies::default(), Arc::new(AtomicUsize::new(0)));
        let (told, counted) = (Arc::clone(&lies), Arc::clone(&connections));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, Arc::clone(&told)));
            }
        });
        Self { url, lies, connections }
    }

    fn lie(&self, lies: &[(&'static str, &[u8])]) {
        *self.lies.lock().unwrap() = lies.iter().map(|(to, lie)| (*to, lie.to_vec())).collect();
    }
}

async fn serve(stream: TcpStream, lies: Lies) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match stream.read_line(&mut line).await {
            Ok(1..) => {}
            _ => return,
        }
        if line.starts_with("ms ") {
            let length: usize = line.split(' ').nth(2).unwrap().parse().unwrap();
            stream.read_exact(&mut vec![0; length + 2]).await.unwrap();
        }
        let told = {
            let lies = lies.lock().unwrap();
            lies.iter().find(|(to, _)| line.starts_with(to)).map(|(_, lie)| lie.clone())
        };
        let answer = told.unwrap_or_else(|| {
            let text = match line.trim_end() {
                "mn" => "MN\r\n",
                "version" => "VERSION 1.6.99\r\n",
                "stats" => "STAT uptime 1000\r\nSTAT time 1790000000\r\nEND\r\n",
                "stats settings" => "STAT evictions off\r\nSTAT cas_enabled yes\r\nEND\r\n",
                other => match &other[..2] {
                    "mg" => "EN\r\n",
                    "ms" => "HD c7\r\n",
                    _ => "NF\r\n",
                },
            };
            text.as_bytes().to_vec()
        });
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_malformed_answer_is_ever_a_grant() {
    let liar = Liar::start().await;
    let store = connect(&liar.url).await;
    let key = key("lies");
    let long_line = [&b"HD c7 "[..], &[b' '; 5000], b"\r\n"].concat();
    let answers: &[&[u8]] = &[
        b"OK\r\n",
        b"STORED\r\n",
        b"HD\r\n",
        b"HD c0\r\n",
        b"HD c-7\r\n",
        b"HD c7 c8\r\n",
        b"HD c7\n",
        b"HDc7\r\n",
        b"HD c99999999999999999999\r\n",
        b"HD x7\r\n",
        b"VA 1 c7 t9\r\nx\r\n",
        b"EN\r\n",
        b"MN\r\n",
        b"END\r\n",
        b"STAT a b\r\nHD c7\r\n",
        b"ERROR\r\n",
        b"CLIENT_ERROR bad data chunk\r\nHD c7\r\n",
        b"VERSION 1\r\n",
        b"SERVER_ERROR out of memory storing object\r\n",
        b"\r\n",
        b"\0\0\0\0\r\n",
        b"HD c7\x1b[2J\r\n",
        &long_line,
    ];
    for answer in answers {
        liar.lie(&[("ms", answer)]);
        let error = match attempt(&store, &key, &secret(), LONG).await {
            Err(error) => error,
            Ok(other) => panic!("{:?} was taken for {other:?}", String::from_utf8_lossy(answer)),
        };
        assert!(!error.to_string().contains("chunk"), "texts of the server stay there: {error}");
        liar.lie(&[]);
        // The connection that went out of step is gone; the next one works.
        until_answered(async || match attempt(&store, &key, &secret(), LONG).await? {
            Attempt::Granted(lease) => {
                assert_eq!(lease.fence.get(), (1_789_999_000 << 32) + 7);
                Ok(())
            }
            Attempt::Busy(_) => panic!("nobody holds it"),
            other => panic!("{other:?}"),
        })
        .await;
    }
    let opened = liar.connections.load(Ordering::SeqCst);
    assert!(
        opened > answers.len() / 2,
        "connections out of step were kept: only {opened} were opened"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_malformed_value_is_ever_our_lock() {
    let liar = Liar::start().await;
    let store = connect(&liar.url).await;
    let (key, me) = (key("lies"), secret());
    let record = |rest: &str| {
        let value = format!("ht1 {} {rest}", me.expose());
        format!("VA {} c7 t600\r\n{value}\r\n", value.len()).into_bytes()
    };
    for lie in [
        record(""),
        record("5 - 5 4 lie"),
        record("5 - 5 4 lies"),
        record("5 x 5 4 lies "),
        record("-5 - 5 4 lies "),
        record("5 - 5 5 lies2 "),
        b"VA 3 c7 t600\r\nht1\r\n".to_vec(),
        b"VA 0 c7 t-1\r\n\r\n".to_vec(),
    ] {
        liar.lie(&[("mg", &lie), ("ms", b"EX\r\n")]);
        let text = String::from_utf8_lossy(&lie).into_owned();
        assert!(matches!(attempt(&store, &key, &me, LONG).await, Ok(Attempt::Busy(_))), "{text:?}");
        assert_eq!(extend(&store, &key, &me, LONG).await.unwrap(), Extension::NotHeld, "{text:?}");
    }
    // The same with nothing wrong is ours, so the refusals above were for what is wrong.
    liar.lie(&[("mg", &record("5 - 5 4 lies "))]);
    assert!(matches!(extend(&store, &key, &me, LONG / 2).await.unwrap(), Extension::Extended(_)));
    // Without the number that was asked for, nothing can be known.
    liar.lie(&[("mg", b"VA 1 t600\r\nx\r\n")]);
    assert_eq!(attempt(&store, &key, &me, LONG).await.unwrap_err().kind(), ErrorKind::Internal);
    // A lock that changes every time it is looked at: bounded, and not called done.
    liar.lie(&[("mg", &record("5 - 5 4 lies ")), ("ms", b"EX\r\n"), ("md", b"EX\r\n")]);
    assert_eq!(
        extend(&store, &key, &me, LONG * 2).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    let restless = Arc::clone(&store).release(key.clone(), me.clone()).await.unwrap_err();
    assert_eq!(restless.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_memcached_is_not_connected_to() {
    let liar = Liar::start().await;
    for (lies, kind) in [
        (&[("mn", &b"ERROR\r\n"[..])][..], ErrorKind::Unsupported),
        (&[("mn", b"HTTP/1.1 400 Bad Request\r\n")], ErrorKind::Internal),
        (&[("mn", b"-ERR unknown command\r\n")], ErrorKind::Internal),
        (&[("mn", b"CLIENT_ERROR unauthenticated\r\n")], ErrorKind::AuthFailed),
        (&[("mn", b"")], ErrorKind::Unavailable),
        (&[("stats", b"END\r\n")], ErrorKind::Internal),
        (&[("stats", b"STAT uptime 9\r\nSTAT time 5\r\nEND\r\n")], ErrorKind::Internal),
        (
            &[("stats", b"STAT uptime 9\r\nSTAT time 99999999999999\r\nEND\r\n")],
            ErrorKind::Internal,
        ),
    ] {
        liar.lie(lies);
        let error = MemcachedStore::connect(&liar.url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{lies:?}: {error}");
    }
    liar.lie(&[]);
    assert!(MemcachedStore::connect(&liar.url).await.unwrap().capabilities().transfer);
}
