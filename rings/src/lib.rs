//! The lock-free parts of Moonring: rings, the wake word, and the table of ops in flight.
//!
//! | module | what | producers / consumers |
//! | --- | --- | --- |
//! | [`spsc`] | ring of any type; reserve, fill in place, publish once | one / one at a time (consumer token) |
//! | [`mpmc`] | ring of 63-bit words; n places by one claim, or none | many / many |
//! | [`completion`] | ring of two-word completions that can't overflow | many / one |
//! | [`credits`] | the free entries of a table: a stack of indices | many / many |
//! | [`crew`] | workers that sleep by one word: whom to wake, and when nobody | |
//! | [`park`] | the wake word: announce, look again, sleep; publish, fence, wake | |
//! | [`deadline`] | the soonest deadline of a table, and when the timer looks next | |
//! | [`linger`] | what waits for company, and who sleeps until it is due | many / one at a time |
//! | [`slots`] | tickets with index and generation, the state of each op in flight | |
//!
//! Nothing here knows of stores, of what threads are for, or of foreign calls. All atomics come through
//! [`sync`], where the model checker `loom` can stand in (`--cfg loom`); the models are in `tests/loom`.

pub mod completion;
pub mod credits;
pub mod crew;
pub mod deadline;
pub mod linger;
pub mod mpmc;
pub mod park;
pub mod slots;
pub mod spsc;
#[doc(hidden)]
pub mod sync;

/// Number of places for at least `n`: a power of two, at least 1. More than memory can hold ends where the places are
/// allocated, as with any collection, and not with a number that wrapped round.
fn capacity(n: usize) -> usize {
    n.clamp(1, 1 << (usize::BITS - 2)).next_power_of_two()
}

/// A ring had no room; what was to be pushed comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<T> {
    /// What was refused.
    pub value: T,
    /// A hint: places that were free when this was found out. Less than was asked for.
    pub room: usize,
}

/// Why nothing could be pushed.
#[derive(Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// No room for all of it.
    Full(Full<T>),
    /// The ring is closed.
    Closed(T),
}
