//! Who asked for the lock of a script: `hold`, which waits at the other end of our standard input.
//!
//! It says when it has told the script how to keep the lock. If it is gone before that, nobody will
//! ever keep it.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What is said when the script was told.
pub(crate) const TOLD: u8 = b't';

/// The one who asked, as long as the script was not told.
#[derive(Debug)]
pub(super) struct Asker {
    line: Option<AsyncFd<OwnedFd>>,
}

impl Asker {
    /// Nobody: what is to be run was named by whoever started us.
    pub(super) fn nobody() -> Self {
        Self { line: None }
    }

    /// Who is at the other end of our standard input. Must be called inside a runtime.
    pub(super) fn at_our_input() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        rustix::io::ioctl_fionbio(&input, true)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for descriptors that change; ours is owned and does not"
        )]
        let line = AsyncFd::with_interest(input, Interest::READABLE)?;
        Ok(Self { line: Some(line) })
    }

    /// Returns when it is gone and has told the script nothing; never, if it has.
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub(super) async fn gone(&mut self) {
        while let Some(line) = &self.line {
            let Ok(mut ready) = line.readable().await else { break };
            let mut word = [0];
            match ready.try_io(|line| Ok(rustix::io::read(line, &mut word)?)) {
                Err(_would_block) => {}
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Ok(1)) if word[0] == TOLD => self.line = None,
                Ok(_) => {
                    self.line = None;
                    return;
                }
            }
        }
        std::future::pending::<()>().await;
    }
}
