//! The command line: its words, and how it ends.

use std::fmt;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::{bench, doctor, gen_trace, replay};

/// Batched, merged access to a KV-cache store
#[derive(Debug, Parser)]
#[command(
    name = "moonring",
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 it went well; 1 corrupt blocks, a failed check, or the run itself failed; 2 bad input."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Play a trace of a chat service against a store and check every byte
    Replay(replay::ReplayArgs),
    /// Measure one op kind in a closed loop
    Bench(bench::BenchArgs),
    /// Write a small made-up trace of the shape of a chat service's
    GenTrace(gen_trace::GenTraceArgs),
    /// See whether this machine and a store will do, and what to do if not
    Doctor(doctor::DoctorArgs),
}

/// How ops reach the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PathKind {
    /// Threads, each with a pair of rings of its own
    Pair,
    /// Futures of clients
    Client,
}

impl PathKind {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            PathKind::Pair => "pair",
            PathKind::Client => "client",
        }
    }
}

/// Why a command did not end well: one line, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What is wrong and where.
    pub what: String,
    /// 1: the run failed; 2: bad input.
    pub code: u8,
}

impl Failure {
    /// Bad input: what the user gave can't be used.
    pub fn input(what: impl fmt::Display) -> Self {
        Self {
            what: what.to_string(),
            code: 2,
        }
    }

    /// The run itself failed.
    pub fn run(what: impl fmt::Display) -> Self {
        Self {
            what: what.to_string(),
            code: 1,
        }
    }

    /// Tells people, and returns the exit code.
    pub fn tell(&self) -> u8 {
        eprintln!("moonring: {}", self.what);
        self.code
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::GenTrace(args) => gen_trace::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.tell()),
    }
}
