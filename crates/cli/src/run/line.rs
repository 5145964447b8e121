//! The line between the wrapper and its guardian: one line of JSON per message, and descriptors
//! beside it.
//!
//! The end of the line is a message too: it means that the process at the other end is gone.
//! Sending never waits: a process that does not read must not keep the other one from its work.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;

/// What the wrapper says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToGuardian {
    /// The first message; with it comes the standard input of the command.
    Hello {
        /// The process group of the wrapper.
        group: i32,
        /// The signals that the wrapper blocked, by number.
        blocked: Vec<i32>,
    },
    /// The wrapper was asked to stop and goes on: whether it was stopped and continued.
    Continued(bool),
}

/// What the guardian says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWrapper {
    /// Comes with descriptors that show others that the lock is held, until all copies are closed.
    Liveness,
    /// The command is started, in this process group.
    Started { group: i32 },
    /// Unless something newer is heard, nobody may be at work at this moment of the boot clock any
    /// more.
    DeadBy(u64),
    /// Stop, with the process group, by this signal, and say when that is over.
    Stop(i32),
    /// It is over for whoever called.
    End(Ending),
}

/// How the wrapper shall end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ending {
    pub(super) code: u8,
    /// Die of this signal instead.
    pub(super) signal: Option<i32>,
    /// The process group around the wrapper gets that signal too.
    pub(super) to_group: bool,
    /// What is said on standard error first.
    pub(super) lines: Vec<String>,
    /// The guardian stays: it has something to keep.
    pub(super) stays: bool,
}

/// One end.
#[derive(Debug)]
pub(super) struct Line {
    socket: tokio::net::UnixStream,
    received: Vec<u8>,
    /// Came beside messages, and not taken yet.
    descriptors: Vec<OwnedFd>,
}

/// What came.
#[derive(Debug)]
pub(super) struct Heard<T> {
    pub(super) messages: Vec<T>,
    /// Nobody is at the other end any more.
    pub(super) closed: bool,
}

/// More than are ever sent at once.
const MOST_DESCRIPTORS: usize = 4;

impl Line {
    /// The end that came as our standard input, whose place is taken by nothing.
    pub(super) fn inherited() -> io::Result<Self> {
        Self::of(inherited()?)
    }

    /// One end of ours. Must be called inside a runtime.
    pub(super) fn of(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let socket = tokio::net::UnixStream::from_std(socket)?;
        Ok(Self { socket, received: Vec::new(), descriptors: Vec::new() })
    }

    /// Sends a message, with descriptors beside it.
    pub(super) fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        send(&self.socket, message, descriptors)
    }

    /// Has the other end hear that nobody is here any more.
    pub(super) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// What has come, when something has.
    ///
    /// # Cancel safety
    /// Cancel-safe: what is not returned is returned by the next call.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Heard<T> {
        loop {
            if self.socket.readable().await.is_err() {
                return Heard { messages: Vec::new(), closed: true };
            }
            let heard = self.collect(true);
            if heard.closed || !heard.messages.is_empty() {
                return heard;
            }
        }
    }

    /// The same without a runtime, for as long as `pause`: nothing else happens in this thread
    /// meanwhile.
    pub(super) fn wait<T: DeserializeOwned>(&mut self, pause: Duration) -> Heard<T> {
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        let _ = poll(&mut watched, Timespec::try_from(pause).ok().as_ref());
        self.take()
    }

    /// What is there already.
    pub(super) fn take<T: DeserializeOwned>(&mut self) -> Heard<T> {
        self.collect(false)
    }

    /// Reads all there is. The runtime has to hear that it is all, if it was the runtime that said
    /// there is something.
    fn collect<T: DeserializeOwned>(&mut self, by_runtime: bool) -> Heard<T> {
        let closed = loop {
            let Self { socket, received, descriptors } = self;
            let read = if by_runtime {
                socket.try_io(Interest::READABLE, || read(&*socket, received, descriptors))
            } else {
                read(&*socket, received, descriptors)
            };
            match read {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        let end = self.received.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        let whole: Vec<u8> = self.received.drain(..end).collect();
        let messages = whole
            .split(|&byte| byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        Heard { messages, closed }
    }

    /// The descriptors that came, in the order of sending.
    pub(super) fn descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }
}

/// The socket that came as our standard input, whose place is taken by nothing.
pub(super) fn inherited() -> io::Result<UnixStream> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(socket.into())
}

/// Sends a message, with descriptors beside it.
pub(super) fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut text = serde_json::to_vec(message)?;
    text.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = sendmsg(socket, &[IoSlice::new(&text)], &mut beside, flags)?;
    // A stream takes small messages whole while it has room; a torn one would make nonsense of all
    // later ones.
    if sent == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Reads what is there: how many bytes, none at the end of the line.
pub(super) fn read(
    socket: impl AsFd,
    received: &mut Vec<u8>,
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut chunk = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut chunk)],
        &mut beside,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    received.extend_from_slice(&chunk[..got.bytes]);
    Ok(got.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Line, Line) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Line::of(ours).unwrap(), Line::of(theirs).unwrap())
    }

    #[tokio::test]
    async fn messages_and_descriptors_arrive_in_order_and_the_end_is_heard() {
        let (mut ours, theirs) = pair();
        let (reader, writer) = io::pipe().unwrap();
        theirs.send(&ToWrapper::Liveness, &[writer.as_fd()]).unwrap();
        theirs.send(&ToWrapper::DeadBy(u64::MAX), &[]).unwrap();
        let heard: Heard<ToWrapper> = ours.next().await;
        assert!(matches!(heard.messages[0], ToWrapper::Liveness), "{heard:?}");
        drop(writer);
        let mut got = std::fs::File::from(ours.descriptors().remove(0));
        io::Write::write_all(&mut got, b"x").unwrap();
        drop(got);
        assert_eq!(io::read_to_string(reader).unwrap(), "x");
        drop(theirs);
        let mut heard: Heard<ToWrapper> = ours.take();
        while !heard.closed {
            heard = ours.next().await;
        }
        assert!(heard.closed);
    }

    #[tokio::test]
    async fn one_who_does_not_read_does_not_keep_the_sender() {
        let (ours, _theirs) = pair();
        let refused = (0..100_000).find_map(|_| ours.send(&ToWrapper::DeadBy(1), &[]).err());
        assert!(refused.is_some());
    }
}
