//! The one door to atomics, cells and threads, so that `loom` can stand in for them.
//!
//! And the door for **broken variants**: a line that matters stands in the source beside a wrong form of it, in `ordering!`
//! or behind `broken`, under a name. Only a build for loom knows the wrong forms; there `MOONRING_BROKEN` picks one, and a
//! model must fail with it (`tools/loom --broken`). Elsewhere they are nothing.

#[cfg(not(loom))]
mod imp {
    pub use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub use std::sync::Arc;
    pub use std::thread;

    /// Whether the line of this name shall be broken: never.
    #[inline(always)]
    pub(crate) const fn broken(_name: &str) -> bool {
        false
    }

    /// `ordering!(Right, "name" => Wrong)`: the right one.
    macro_rules! ordering {
        ($right:ident, $($name:literal => $wrong:ident),+) => {
            $crate::sync::Ordering::$right
        };
    }
    pub(crate) use ordering;

    /// `core::cell::UnsafeCell` with the interface of loom's.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T: ?Sized>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell with this content.
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }
    }

    impl<T: ?Sized> UnsafeCell<T> {
        /// Lends the content to read.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Lends the content to write.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(loom)]
mod imp {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::Arc;
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub use loom::thread;

    /// Whether the line of this name shall be broken: where `MOONRING_BROKEN` says so.
    pub(crate) fn broken(name: &str) -> bool {
        use std::sync::OnceLock;
        static PICKED: OnceLock<Option<String>> = OnceLock::new();
        let picked = PICKED.get_or_init(|| std::env::var("MOONRING_BROKEN").ok());
        picked.as_deref() == Some(name)
    }

    /// `ordering!(Right, "name" => Wrong)`: the right one, unless the line of this name shall be broken. A line with two
    /// sides has a name for each.
    macro_rules! ordering {
        ($right:ident, $($name:literal => $wrong:ident),+) => {
            match () {
                $(() if $crate::sync::broken($name) => $crate::sync::Ordering::$wrong,)+
                () => $crate::sync::Ordering::$right,
            }
        };
    }
    pub(crate) use ordering;
}

pub use imp::*;
pub(crate) use imp::{broken, ordering};
