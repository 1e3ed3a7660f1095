//! The host's signals stay the host's, whatever a library does while it is opened.

/// What the handlers of all signals were.
pub(super) struct Handlers(Vec<(libc::c_int, libc::sigaction)>);

impl Handlers {
    /// Those of now.
    pub fn of_the_host() -> Self {
        let numbers = 1..=libc::SIGRTMAX();
        Self(numbers.filter_map(|n| Some((n, current(n)?))).collect())
    }

    /// Puts those back that are others now. What the host itself has changed meanwhile, on another thread, is put back too.
    pub fn put_back(&self) {
        for (number, before) in &self.0 {
            let same = current(*number).is_some_and(|now| {
                now.sa_sigaction == before.sa_sigaction && now.sa_flags == before.sa_flags
            });
            if !same {
                tracing::debug!(
                    signal = number,
                    "Mooncake's library changed a handler; put back"
                );
                // SAFETY: `before` is a complete action that the kernel gave for this signal.
                unsafe { libc::sigaction(*number, before, std::ptr::null_mut()) };
            }
        }
    }
}

/// `None` for numbers that have no handler to ask for.
fn current(number: libc::c_int) -> Option<libc::sigaction> {
    let mut action = std::mem::MaybeUninit::zeroed();
    // SAFETY: only asks; `action` is a place for the answer.
    let failed = unsafe { libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) } != 0;
    // SAFETY: all zeroes is a `sigaction`, and the kernel has filled it in.
    (!failed).then(|| unsafe { action.assume_init() })
}
