//! The fault proxy: what each switch does to the bytes of a connection.

use std::net::SocketAddr;
use std::time::Duration;

use holdtight_testkit::{Flow, Proxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A server that answers every byte with itself and `mark`.
async fn server(mark: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(byte) = stream.read_u8().await {
                    if stream.write_all(&[byte, mark]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

async fn ask(stream: &mut TcpStream, byte: u8) -> std::io::Result<[u8; 2]> {
    stream.write_all(&[byte]).await?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Whether nothing comes for a while. A slow machine can only make this truer.
async fn is_silent(stream: &mut TcpStream) -> bool {
    tokio::time::timeout(Duration::from_millis(100), stream.read_u8()).await.is_err()
}

#[tokio::test]
async fn bytes_pass_and_are_counted() {
    let proxy = Proxy::to(server(b'a').await).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    for flow in [Flow::Pass, Flow::Trickle, Flow::Delay(Duration::from_millis(5))] {
        proxy.requests(flow);
        proxy.replies(flow);
        assert_eq!(ask(&mut stream, 1).await.unwrap(), [1, b'a'], "{flow:?}");
    }
    let traffic = proxy.traffic();
    assert_eq!((traffic.connections, traffic.requests), (1, 3));
    assert_eq!((traffic.sent, traffic.received), (3, 6));
}

#[tokio::test]
async fn held_bytes_come_later_and_dropped_ones_never() {
    let proxy = Proxy::to(server(b'a').await).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.replies(Flow::Hold);
    stream.write_all(&[1]).await.unwrap();
    assert!(is_silent(&mut stream).await, "held");
    proxy.heal();
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, [1, b'a'], "nothing was lost, so the connection lives on");
    proxy.black_hole();
    stream.write_all(&[2]).await.unwrap();
    assert!(is_silent(&mut stream).await, "dropped");
    proxy.heal();
    assert!(ask(&mut stream, 3).await.is_err(), "a stream with a hole in it must end");
}

#[tokio::test]
async fn connections_are_cut_refused_and_led_elsewhere() {
    let proxy = Proxy::to(server(b'a').await).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut stream, 1).await.unwrap(), [1, b'a']);
    proxy.redirect(server(b'b').await);
    assert_eq!(
        ask(&mut stream, 2).await.unwrap(),
        [2, b'a'],
        "old connections stay where they are"
    );
    proxy.cut();
    assert!(ask(&mut stream, 3).await.is_err());
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut stream, 4).await.unwrap(), [4, b'b']);
    proxy.down();
    assert!(ask(&mut stream, 5).await.is_err());
    if let Ok(mut stream) = TcpStream::connect(proxy.address()).await {
        assert!(ask(&mut stream, 6).await.is_err(), "refused");
    }
    proxy.heal();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut stream, 7).await.unwrap(), [7, b'b']);
}

/// Several threads, because the race this is about is between the caller of `cut` and the task that
/// carries bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_bytes_are_lost_in_a_cut_even_if_all_heals_at_once() {
    let proxy = Proxy::to(server(b'a').await).await.unwrap();
    for round in 0..200_u32 {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut stream, 1).await.unwrap(), [1, b'a']);
        proxy.replies(Flow::Hold);
        let before = proxy.traffic().received;
        stream.write_all(&[2]).await.unwrap();
        let answered = async {
            while proxy.traffic().received == before {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), answered).await.expect("the server answers");
        proxy.cut();
        proxy.heal();
        assert!(stream.read_u8().await.is_err(), "an answer came through a cut in round {round}");
    }
}
