//! What was found, line by line, for people and as JSON.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::cli::Failure;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could.
    Warn,
    /// It doesn't work.
    Fail,
}

/// A check that was made.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do about it; there is something wherever it is not ok.
    pub todo: Option<String>,
    /// How long it took, in milliseconds.
    pub took_ms: f64,
}

impl Check {
    /// It is as it should be.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            found: found.into(),
            todo: None,
            took_ms: 0.0,
        }
    }

    /// It works, but something should be done.
    pub fn warn(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self {
            status: Status::Warn,
            todo: Some(todo.into()),
            ..Self::ok(name, found)
        }
    }

    /// It doesn't work until something is done.
    pub fn fail(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self {
            status: Status::Fail,
            ..Self::warn(name, found, todo)
        }
    }
}

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Which JSON this is.
    pub schema: &'static str,
    /// The effective configuration.
    pub l2_adapter: Value,
    /// Size of the host's region, as it was given.
    pub region_bytes: u64,
    /// What was looked at, in this order.
    pub checks: Vec<Check>,
    /// What was not looked at, because it needs what failed.
    pub not_tried: Vec<&'static str>,
}

impl Report {
    /// Writes a check down, with the time that it took.
    pub fn add(&mut self, mut check: Check, took: Duration) {
        check.took_ms = took.as_secs_f64() * 1e3;
        self.checks.push(check);
    }

    /// `None`: one of these checks failed.
    pub fn all_passed(&self, names: &[&str]) -> Option<()> {
        let failed = |check: &Check| check.status == Status::Fail && names.contains(&check.name);
        (!self.checks.iter().any(failed)).then_some(())
    }

    /// A line for each check, and one below it for what to do.
    pub fn text(&self) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max();
        let width = width.unwrap_or(0);
        let mut text = String::new();
        for check in &self.checks {
            let status = match check.status {
                Status::Ok => "ok",
                Status::Warn => "warn",
                Status::Fail => "fail",
            };
            // Writing to a String can't fail.
            let _ = writeln!(text, "{status:<4}  {:<width$}  {}", check.name, check.found);
            if let Some(todo) = &check.todo {
                let _ = writeln!(text, "      {:<width$}  to do: {todo}", "");
            }
        }
        if !self.not_tried.is_empty() {
            let _ = writeln!(text, "not tried: {}", self.not_tried.join(", "));
        }
        text
    }

    /// How the command ends.
    ///
    /// # Errors
    /// A check failed.
    pub fn ended(&self) -> Result<(), Failure> {
        let failed = self.checks.iter().filter(|c| c.status == Status::Fail);
        let failed: Vec<_> = failed.map(|check| check.name).collect();
        match failed.as_slice() {
            [] => Ok(()),
            names => Err(Failure::run(format!("failed: {}", names.join(", ")))),
        }
    }
}
