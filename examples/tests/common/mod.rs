//! What the examples' tests share: a watchdog, and servers that run as processes.

#![allow(dead_code)] // each test file uses a part of it

#[path = "../../../tests/common/one_run.rs"]
pub mod one_run;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Ends the process, saying which test hangs, unless it is dropped within a minute.
#[must_use = "it watches until it is dropped"]
pub fn watchdog() -> mpsc::Sender<()> {
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    let (done, watched) = mpsc::channel();
    std::thread::spawn(move || {
        let limit = Duration::from_secs(60);
        if watched.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = writeln!(std::io::stderr().lock(), "\nwatchdog: {name} hangs");
            std::process::abort();
        }
    });
    done
}

/// An example that serves HTTP, in a process of its own.
pub struct Server {
    process: Child,
    output: BufReader<ChildStdout>,
    pub address: String,
}

impl Server {
    /// Starts it, and waits until it says where it listens.
    pub fn start(example: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(example);
        command.args(arguments).stdout(Stdio::piped());
        let dies_with_its_test = || {
            // SAFETY: takes numbers alone.
            match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // The watchdog's abort drops nothing, and whoever reads the test's output would wait for the server's, too.
        // SAFETY: one system call, and nothing is allocated.
        unsafe { command.pre_exec(dies_with_its_test) };
        let mut process = command.spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ");
        let address = address
            .unwrap_or_else(|| panic!("{example}: {line}"))
            .to_owned();
        Self {
            process,
            output,
            address,
        }
    }

    /// Status and body of a page.
    pub fn get(&self, path: &str) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: no pointers; the process is our child, and not waited for yet.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }

    /// Waits for its end: status, and what it printed since.
    pub fn end(&mut self) -> (ExitStatus, String) {
        let mut printed = String::new();
        self.output.read_to_string(&mut printed).unwrap();
        (self.process.wait().unwrap(), printed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
