//! The command line describes itself: help, man pages and completions name every command and every option.

mod support;

use std::fs;
use std::process::{Command, Stdio};

use clap::CommandFactory;
use moonring_tools::cli::Cli;
use support::{folder, moonring};

/// Every command with its long options.
fn options() -> Vec<(String, Vec<String>)> {
    let cli = Cli::command();
    let commands = cli.get_subcommands().map(|command| {
        let options = command.get_arguments().filter_map(|arg| arg.get_long());
        (
            command.get_name().to_owned(),
            options.map(str::to_owned).collect(),
        )
    });
    commands.collect()
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn each_command_and_option_has_help() {
    let cli = Cli::command();
    for command in cli.get_subcommands() {
        let name = command.get_name();
        assert!(command.get_about().is_some(), "{name}");
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some(), "{name} {arg}");
        }
        let run = moonring([name, "--help"]);
        assert_eq!(run.code, Some(0), "{run:?}");
    }
}

#[test]
fn each_command_has_a_man_page() {
    let folder = folder("man");
    let run = moonring(["man".as_ref(), folder.as_os_str()]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let main = fs::read_to_string(folder.join("moonring.1")).expect("a page");
    assert!(
        main.starts_with(".ie") || main.contains(".TH moonring 1"),
        "{main}"
    );
    for (command, options) in options() {
        let page = fs::read_to_string(folder.join(format!("moonring-{command}.1")));
        let page = page.unwrap_or_else(|e| panic!("{command}: {e}"));
        for option in options {
            let text = format!("\\-\\-{}", option.replace('-', "\\-"));
            assert!(page.contains(&text), "{command} {option}");
        }
    }
    let run = moonring(["man", "/proc/none"]);
    assert_eq!(run.code, Some(2), "{run:?}");
}

#[test]
fn shells_complete_each_option() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = moonring(["completions", shell]);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
        for (command, options) in options() {
            assert!(run.stdout.contains(&command), "{shell} {command}");
            for option in options {
                assert!(run.stdout.contains(&option), "{shell} {command} {option}");
            }
        }
    }
    // The one shell that is everywhere takes its script, and completes with it.
    let script = moonring(["completions", "bash"]).stdout;
    let file = folder("completions").join("moonring.bash");
    fs::write(&file, script).expect("a file");
    let complete = "source \"$1\" && COMP_WORDS=(moonring bench --hl) COMP_CWORD=2 && \
                    _moonring moonring --hl bench && echo \"${COMPREPLY[@]}\"";
    let out = Command::new("bash")
        .args(["-c", complete, "bash"])
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let out = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    assert_eq!(out, "--hlog");
}
