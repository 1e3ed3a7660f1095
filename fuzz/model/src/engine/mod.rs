//! The engine against a model of it: any bytes are a sequence of submissions, rounds, deadlines, cancels, dropped pairs and futures,
//! and what the engine does is compared with what the model says at every step.
//!
//! The engine is driven by hand, on one thread and on a clock that is moved by hand. The store is the script's too: inside each of
//! its calls the sequence goes on, so that ops end, and others come, while a call has them; other drivers make their rounds inside
//! it, as other workers do, of other op kinds or of the same.
//!
//! So calls overlap, but the one that began last returns first: other orders are not seen here. Nor is what a lane of several
//! workers learns of the time that its calls take (`adapt`, which is off for them): to foresee it the model would have to be its twin.
//!
//! Compared are: the answer to each submission and cancel; each store call, with its keys, buffers and order; each completion, with
//! its ticket, result and flags; the bytes of slots and objects; which slots are free; what is in quarantine; whether circuits are
//! open, and why; all counts.

mod model;
mod store;
mod world;

pub use world::check;
