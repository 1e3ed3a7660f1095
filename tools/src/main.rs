//! The command line of Moonring.
fn main() {}
