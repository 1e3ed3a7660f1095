//! What a replay counts.

use std::fmt;

use serde::Serialize;

use crate::content::Mismatch;

/// How many corrupt blocks are listed one by one; all are counted.
pub const MAX_LISTED: usize = 1000;

/// A block that was served with wrong bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Corrupt {
    /// The request's number in the trace, from 1: its line.
    pub request: u64,
    /// The block's place in the request, from 0.
    pub block: u64,
    /// The block's id.
    pub id: u64,
    /// The block's key.
    pub key: String,
    /// The object's length as reported, in bytes.
    pub len: u64,
    /// The first wrong byte; `None` where only the length is wrong.
    #[serde(flatten)]
    pub mismatch: Option<Mismatch>,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            request,
            block,
            id,
            key,
            len,
            mismatch,
        } = self;
        write!(f, "request {request}, block {block} (id {id}, key {key}): ")?;
        match mismatch {
            Some(first) => {
                let Mismatch {
                    offset,
                    expected,
                    found,
                } = first;
                let never = match first.is_poison() {
                    true => " and was never written",
                    false => "",
                };
                write!(
                    f,
                    "byte {offset} is {found:#04x} instead of {expected:#04x}{never}; reported length {len}"
                )
            }
            None => write!(f, "the reported length {len} is wrong"),
        }
    }
}

/// The counts of one seat, or of all.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests that were played.
    pub requests: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Blocks that a retrieve served, the corrupt ones among them.
    pub hit_blocks: u64,
    /// Blocks that were there at the lookup and gone at the retrieve.
    pub late_misses: u64,
    /// Blocks whose store went well: new, or already there.
    pub stored_blocks: u64,
    /// Blocks that the store had no room for.
    pub no_space: u64,
    /// Blocks whose retrieve or store failed otherwise.
    pub failed_blocks: u64,
    /// Blocks that were served with wrong bytes or a wrong length. They are hits, too.
    pub corrupt_blocks: u64,
    /// True lengths of all hits, in bytes.
    pub bytes_retrieved: u64,
    /// Bytes of all stored blocks.
    pub bytes_stored: u64,
    /// The first corrupt blocks, at most [`MAX_LISTED`].
    pub corrupt: Vec<Corrupt>,
}

impl Tally {
    /// Counts a corrupt block; `describe` is asked only where it will be listed.
    pub fn corrupt(&mut self, describe: impl FnOnce() -> Corrupt) {
        self.corrupt_blocks += 1;
        if self.corrupt.len() < MAX_LISTED {
            self.corrupt.push(describe());
        }
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: Tally) {
        self.requests += other.requests;
        self.blocks += other.blocks;
        self.hit_blocks += other.hit_blocks;
        self.late_misses += other.late_misses;
        self.stored_blocks += other.stored_blocks;
        self.no_space += other.no_space;
        self.failed_blocks += other.failed_blocks;
        self.corrupt_blocks += other.corrupt_blocks;
        self.bytes_retrieved += other.bytes_retrieved;
        self.bytes_stored += other.bytes_stored;
        self.corrupt.extend(other.corrupt);
        self.corrupt.sort_by_key(|c| (c.request, c.block));
        self.corrupt.truncate(MAX_LISTED);
    }

    /// Blocks that are accounted for; a complete run has [`blocks`](Tally::blocks) here.
    pub fn accounted(&self) -> u64 {
        self.hit_blocks + self.late_misses + self.stored_blocks + self.no_space + self.failed_blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_corrupt_blocks_are_counted_and_the_first_are_listed() {
        let tally = |requests: std::ops::Range<u64>| {
            let mut tally = Tally::default();
            for request in requests {
                tally.corrupt(|| Corrupt {
                    request,
                    block: 0,
                    id: 0,
                    key: String::new(),
                    len: 0,
                    mismatch: None,
                });
            }
            tally
        };
        let mut all = tally(500..2000);
        assert_eq!((all.corrupt_blocks, all.corrupt.len()), (1500, MAX_LISTED));
        all.add(tally(0..500));
        assert_eq!((all.corrupt_blocks, all.corrupt.len()), (2000, MAX_LISTED));
        let listed: Vec<_> = all.corrupt.iter().map(|c| c.request).collect();
        assert_eq!(listed, (0..1000).collect::<Vec<_>>());
    }
}
