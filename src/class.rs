//! How urgent an op is.

/// How urgent an op is. Each class has rings of its own, for each op kind.
///
/// Workers take foreground ops first, and background ops with what a batch has left. However much foreground there is,
/// of eight takes of an op kind at which background ops wait, they go first in one; however much background there is, they
/// go first in no more than that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Somebody waits for it.
    #[default]
    Foreground = 0,
    /// It can wait: prefetches, write-backs, clean-up.
    Background = 1,
}

impl Class {
    /// Both classes, the one that goes first before the other.
    pub const ALL: [Class; 2] = [Class::Foreground, Class::Background];

    /// The class's name: `foreground`, `background`.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Foreground => "foreground",
            Class::Background => "background",
        }
    }

    /// Position in [`Class::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
