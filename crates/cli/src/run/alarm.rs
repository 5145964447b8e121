//! An alarm on the boot clock, which runs on while the machine sleeps: after a suspend it rings at
//! once, where the runtime's own timer would first wait for what it had left.

use std::io;
use std::time::Duration;

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

/// One alarm, set anew each time.
#[derive(Debug)]
pub(super) struct Alarm {
    #[cfg(target_os = "linux")]
    timer: tokio::io::unix::AsyncFd<OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Alarm {
    /// An alarm that is not set. Must be called inside a runtime.
    pub(super) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for descriptors that change; ours is owned and does not"
        )]
        let timer = tokio::io::unix::AsyncFd::with_interest(timer, tokio::io::Interest::READABLE)?;
        Ok(Self { timer })
    }

    /// Returns when `pause` is over.
    ///
    /// # Cancel safety
    /// Cancel-safe: the next call sets it anew.
    pub(super) async fn after(&self, pause: Duration) {
        if self.set(pause).is_err() {
            return tokio::time::sleep(pause).await;
        }
        loop {
            let Ok(mut ready) = self.timer.readable().await else { return };
            // Reading tells whether it rang since it was set, or only before.
            match ready.try_io(|timer| Ok(rustix::io::read(timer, &mut [0; 8])?)) {
                Err(_would_block) => {}
                Ok(_) => return,
            }
        }
    }

    fn set(&self, pause: Duration) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        // Zero would switch it off.
        let at = pause.max(Duration::from_nanos(1));
        let at = Timespec::try_from(at).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
impl Alarm {
    #[expect(clippy::unnecessary_wraps, reason = "the same signature everywhere")]
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    pub(super) async fn after(&self, pause: Duration) {
        tokio::time::sleep(pause).await;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_alarm_that_rang_for_nobody_does_not_ring_for_the_next_one() {
        let alarm = Alarm::new().unwrap();
        let forgotten = alarm.after(Duration::ZERO);
        let second = tokio::time::timeout(Duration::from_secs(3600), async {
            drop(forgotten);
            alarm.set(Duration::from_nanos(1)).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let started = std::time::Instant::now();
            alarm.after(Duration::from_millis(30)).await;
            started.elapsed()
        });
        assert!(second.await.unwrap() >= Duration::from_millis(30));
        alarm.after(Duration::ZERO).await;
    }
}
