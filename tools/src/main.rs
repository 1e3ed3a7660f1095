//! The command line of Moonring.

fn main() -> std::process::ExitCode {
    moonring_tools::cli::main()
}
