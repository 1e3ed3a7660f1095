//! Op kinds and what an op that went well reports.

/// The four kinds of op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum OpKind {
    /// Is an object with this key there?
    Lookup = 0,
    /// Read an object into a buffer.
    Retrieve = 1,
    /// Write an object from a buffer.
    Store = 2,
    /// Remove an object.
    Delete = 3,
}

impl OpKind {
    /// All kinds, in lane order.
    pub const ALL: [OpKind; 4] = [
        OpKind::Lookup,
        OpKind::Retrieve,
        OpKind::Store,
        OpKind::Delete,
    ];

    /// The kind's name as in the configuration: `lookup`, `retrieve`, `store`, `delete`.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Lookup => "lookup",
            OpKind::Retrieve => "retrieve",
            OpKind::Store => "store",
            OpKind::Delete => "delete",
        }
    }

    /// Position in [`OpKind::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl std::fmt::Display for OpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How a store op that went well ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOutcome {
    /// The object is new; these bytes are what the store holds.
    Stored,
    /// An object with this key was already there and stays as it was: objects are immutable.
    AlreadyThere,
    /// The store can't tell the two apart (Mooncake): new, already there, or being written by another.
    Accepted,
}

impl StoreOutcome {
    pub(crate) const fn to_raw(self) -> u64 {
        match self {
            StoreOutcome::Accepted => 0,
            StoreOutcome::Stored => 1,
            StoreOutcome::AlreadyThere => 2,
        }
    }

    pub(crate) const fn from_raw(raw: u64) -> Self {
        match raw {
            1 => StoreOutcome::Stored,
            2 => StoreOutcome::AlreadyThere,
            _ => StoreOutcome::Accepted,
        }
    }
}
