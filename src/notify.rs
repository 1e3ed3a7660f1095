//! The eventfd of a pair, for hosts that wait in their own `epoll`, `poll` or `select`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::pair::PairShared;

/// A pair's eventfd. It stays open, and its number is not used again, until the last handle, the pair and the engine's
/// workers have let go of it.
///
/// One signal may stand for many completions: drain until empty, then [`arm`](crate::Pair::arm), then sleep.
#[derive(Clone)]
pub struct EventFd(pub(crate) Arc<PairShared>);

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `EventFd` is made only after the descriptor was opened, and the pair's shared part owns it for at least as
        // long as this handle lives.
        unsafe { BorrowedFd::borrow_raw(self.0.event.get().map_or(-1, |fd| fd.as_raw_fd())) }
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for EventFd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("EventFd").field(&self.as_raw_fd()).finish()
    }
}

/// A new eventfd: non-blocking, closed on exec.
pub(crate) fn open() -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes it readable.
pub(crate) fn signal(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: 8 readable bytes. The write can only fail where the counter is at its limit: readable already.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Makes it unreadable until the next signal.
pub(crate) fn clear(fd: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: 8 writable bytes. The read fails where there was no signal, which is as well.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}
