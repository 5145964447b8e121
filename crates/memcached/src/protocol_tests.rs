//! The parser against whole replies, broken ones, arbitrary bytes, and every way to cut a stream.

use proptest::prelude::*;

use super::*;

fn all(chunks: &[&[u8]]) -> Result<Vec<Reply>, Malformed> {
    let (mut inbox, mut replies) = (Inbox::default(), Vec::new());
    for chunk in chunks {
        inbox.space().extend_from_slice(chunk);
        while let Some(reply) = inbox.next()? {
            replies.push(reply);
        }
        let kept = inbox.bytes.len();
        assert!(kept <= VALUE_BYTES + LINE_BYTES + 2, "{kept} bytes are more than one reply");
    }
    Ok(replies)
}

fn one(bytes: &[u8]) -> Result<Option<Reply>, Malformed> {
    Ok(all(&[bytes])?.into_iter().next())
}

fn flags(cas: Option<u64>, left: Option<Left>) -> Flags {
    Flags { cas, left }
}

#[test]
fn requests_are_what_the_protocol_says() {
    let name = "n:1";
    let set = |write| Request::Set { name, value: b"abc", write, seconds: 32 };
    for (request, bytes) in [
        (Request::NoOp, "mn\r\n"),
        (Request::Version, "version\r\n"),
        (Request::Statistics { of: "" }, "stats\r\n"),
        (Request::Statistics { of: "settings" }, "stats settings\r\n"),
        (Request::Get { name }, "mg n:1 v c t\r\n"),
        (Request::Delete { name, cas: 7 }, "md n:1 C7\r\n"),
        (set(Write::Add), "ms n:1 3 ME T32 c\r\nabc\r\n"),
        (set(Write::Replace(9)), "ms n:1 3 C9 T32 c\r\nabc\r\n"),
    ] {
        assert_eq!(String::from_utf8(request.encode()).unwrap(), bytes);
    }
}

#[test]
fn replies_are_read() {
    for (bytes, reply) in [
        ("HD\r\n", Reply::Done(Flags::default())),
        ("HD c12\r\n", Reply::Done(flags(Some(12), None))),
        ("EN\r\n", Reply::Missing),
        ("NS c0\r\n", Reply::NotStored),
        ("EX c0\r\n", Reply::Changed),
        ("NF c0\r\n", Reply::NotFound),
        ("MN\r\n", Reply::NoOp),
        ("VERSION 1.6.18\r\n", Reply::Version("1.6.18".into())),
        (
            "VA 2 c5 t30\r\nhi\r\n",
            Reply::Value(flags(Some(5), Some(Left::Seconds(30))), Some(b"hi".into())),
        ),
        (
            "VA 2 t-1 c5\r\n\r\n\r\n",
            Reply::Value(flags(Some(5), Some(Left::Forever)), Some(b"\r\n".into())),
        ),
        ("VA 0 c5 W\r\n\r\n", Reply::Value(flags(Some(5), None), Some(Vec::new()))),
        ("ERROR\r\n", Reply::Refused(Refusal::Command, String::new())),
        ("SERVER_ERROR out of x\r\n", Reply::Refused(Refusal::Server, "out of x".into())),
        ("CLIENT_ERROR bad\r\n", Reply::Refused(Refusal::Request, "bad".into())),
        (
            "STAT pid 7\r\nSTAT empty \r\nEND\r\n",
            Reply::Statistics(vec![("pid".into(), "7".into()), ("empty".into(), String::new())]),
        ),
    ] {
        assert_eq!(one(bytes.as_bytes()), Ok(Some(reply)), "{bytes:?}");
    }
}

#[test]
fn what_the_protocol_does_not_have_is_malformed() {
    for bytes in [
        "OK\r\n",
        "STORED\r\n",
        "HD\n",
        "\r\n",
        "\n",
        "hd c1\r\n",
        "HD c\r\n",
        "HD c-1\r\n",
        "HD c+1\r\n",
        "HD c1 c2\r\n",
        "HD c18446744073709551616\r\n",
        "HD x\r\n",
        "HD t-2\r\n",
        "EN c1\r\n",
        "MN x\r\n",
        "VA\r\n",
        "VA -1\r\n",
        "VA x\r\n",
        "VA 99999999999\r\n",
        "VA 2 c1\r\nhello\r\n",
        "VA 2 c1\r\nhi\n\n",
        "STAT\r\n",
        "STAT a 1\r\nHD\r\n",
        "HD \u{1b}[2J\r\n",
        "HD\u{e9}\r\n",
        "VALUE a 0 1\r\nx\r\nEND\r\n",
    ] {
        assert!(one(bytes.as_bytes()).is_err(), "{bytes:?}: {:?}", one(bytes.as_bytes()));
    }
}

#[test]
fn nothing_grows_without_bound() {
    assert!(one(&[b'H'; LINE_BYTES]).is_err(), "a line without end");
    let endless = "STAT a b\r\n".repeat(STATISTICS + 1);
    assert!(one(endless.as_bytes()).is_err(), "statistics without end");
    // A value of another program, far longer than any of ours, goes by without being kept.
    let (megabyte, mut inbox) = (vec![b'x'; 1 << 20], Inbox::default());
    inbox.space().extend_from_slice(b"VA 1048576 c3 t9\r\n");
    assert_eq!(inbox.next(), Ok(None));
    for chunk in megabyte.chunks(1000) {
        inbox.space().extend_from_slice(chunk);
        assert_eq!(inbox.next(), Ok(None));
        assert!(inbox.bytes.is_empty(), "kept bytes of a value that nobody wants");
    }
    inbox.space().extend_from_slice(b"\r\nHD\r\n");
    assert_eq!(inbox.next(), Ok(Some(Reply::Value(flags(Some(3), Some(Left::Seconds(9))), None))));
    assert_eq!(inbox.next(), Ok(Some(Reply::Done(Flags::default()))));
}

/// Bytes that look like replies more often than noise would.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(b"HD".to_vec()),
        Just(b"VA".to_vec()),
        Just(b"EN".to_vec()),
        Just(b"STAT".to_vec()),
        Just(b"END".to_vec()),
        Just(b"VA 5000 c1\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b" ".to_vec()),
        Just(b"c1".to_vec()),
        Just(b"t-1".to_vec()),
        Just(b"3".to_vec()),
        Just(b"SERVER_ERROR ".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..8),
    ];
    proptest::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

fn good() -> impl Strategy<Value = Vec<u8>> {
    let value = proptest::collection::vec(any::<u8>(), 0..300).prop_map(|value| {
        let mut bytes = format!("VA {} c7 t30\r\n", value.len()).into_bytes();
        bytes.extend_from_slice(&value);
        bytes.extend_from_slice(b"\r\n");
        bytes
    });
    let long = (VALUE_BYTES..VALUE_BYTES + 3000).prop_map(|length| {
        format!("VA {length} c7 t30\r\n{}\r\n", "y".repeat(length)).into_bytes()
    });
    let reply = prop_oneof![
        8 => value,
        1 => long,
        2 => Just(b"HD c5\r\n".to_vec()),
        2 => Just(b"NS\r\n".to_vec()),
        2 => Just(b"STAT a 1\r\nSTAT b 2\r\nEND\r\n".to_vec()),
    ];
    proptest::collection::vec(reply, 1..6).prop_map(|replies| replies.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_end_in_replies_or_an_error_and_nothing_is_kept(bytes in noise(), at: prop::sample::Index) {
        let at = at.index(bytes.len() + 1);
        let one_by_one: Vec<&[u8]> = bytes.chunks(1).collect();
        // Where a stream is cut changes nothing: neither the replies nor that there is an error.
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        let drain = |inbox: &mut Inbox, replies: &mut Vec<Reply>| loop {
            match inbox.next() {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => return true,
                Err(_) => return false,
            }
        };
        let mut inbox = Inbox::default();
        inbox.space().extend_from_slice(&bytes);
        let whole_ok = drain(&mut inbox, &mut whole);
        let mut inbox = Inbox::default();
        let mut parts_ok = true;
        for part in [&bytes[..at], &bytes[at..]] {
            inbox.space().extend_from_slice(part);
            parts_ok = parts_ok && drain(&mut inbox, &mut parts);
        }
        // Byte by byte too, where no more than one reply is ever kept: `all` looks.
        match all(&one_by_one) {
            Ok(replies) => prop_assert!(whole_ok && replies == whole),
            Err(_) => prop_assert!(!whole_ok),
        }
        prop_assert_eq!(whole, parts);
        prop_assert_eq!(whole_ok, parts_ok);
    }

    #[test]
    fn a_stream_means_the_same_however_it_is_cut(bytes in good(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let parts: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        let whole = {
            let (mut inbox, mut replies) = (Inbox::default(), Vec::new());
            inbox.space().extend_from_slice(&bytes);
            while let Some(reply) = inbox.next().unwrap() {
                replies.push(reply);
            }
            replies
        };
        prop_assert!(!whole.is_empty());
        prop_assert_eq!(&all(&single).unwrap(), &whole);
        let mut inbox = Inbox::default();
        let mut replies = Vec::new();
        for part in parts {
            inbox.space().extend_from_slice(part);
            while let Some(reply) = inbox.next().unwrap() {
                replies.push(reply);
            }
        }
        prop_assert_eq!(&replies, &whole);
    }
}
