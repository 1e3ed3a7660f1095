//! The command line: its words, and how it ends.

use std::fmt;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::{bench, doctor, gen_trace, replay, report};

/// Batched, merged access to a KV-cache store
#[derive(Debug, Parser)]
#[command(
    name = "moonring",
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 it went well; 1 corrupt blocks, a failed check, or the run itself failed; 2 bad input; \
                  130 Ctrl-C ended the run, and what was done before is reported."
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
    /// Measure one op kind, as fast as it goes or at a rate
    Bench(bench::BenchArgs),
    /// Compare latencies of runs, as a table and as a page for a browser
    Report(report::ReportArgs),
    /// Write a small made-up trace of the shape of a chat service's
    GenTrace(gen_trace::GenTraceArgs),
    /// See whether this machine and a store will do, and what to do if not
    Doctor(doctor::DoctorArgs),
    /// Print a script for a shell that completes this command line
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write man pages, one for each command
    Man {
        /// Where to; made if it is not there
        dir: PathBuf,
    },
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
    /// 1: the run failed; 2: bad input; 130: interrupted.
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

fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "moonring", &mut script);
    match std::io::stdout().write_all(&script) {
        // Whoever reads it has seen enough.
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::run(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}

fn man(dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .map_err(|e| Failure::input(format!("{}: {e}", dir.display())))
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Report(args) => report::run(&args),
        Command::GenTrace(args) => gen_trace::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions { shell } => completions(shell),
        Command::Man { dir } => man(&dir),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.tell()),
    }
}
