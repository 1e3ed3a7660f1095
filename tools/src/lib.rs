//! The command line of Moonring: `bench`, `replay`, `report`, `gen-trace`, `doctor`.

pub mod bench;
pub mod cli;
pub mod content;
pub mod doctor;
pub mod gen_trace;
pub mod interrupt;
pub mod keys;
pub mod oracle;
pub mod record;
pub mod replay;
pub mod report;
pub mod rng;
pub mod session;
pub mod table;
pub mod trace;
pub mod unpark;
