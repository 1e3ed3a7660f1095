//! The rings of Moonring.
