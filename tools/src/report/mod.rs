//! `moonring report`: one page about one run, or about several beside each other.

mod load;
mod page;
pub mod svg;

use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::Failure;
use crate::session::JsonOut;
use crate::table::{self, Table};
use load::{Latency, Part, Run};
use page::MAX_RUNS;

/// Arguments of `report`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moonring report a.hlog a.json --html a.html
  moonring report before.hlog before.json after.hlog after.json --html both.html
Ratios are to the run that is named first. A log has whole distributions; batch sizes and errors are in the JSON.")]
pub struct ReportArgs {
    /// What bench and replay wrote: .hlog files, JSON reports, or both; files of one name (a.hlog, a.json) are of one run
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write a page for a browser, whole by itself
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    /// Write the percentiles and ratios as JSON; - is standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
}

/// Runs `report`.
///
/// # Errors
/// A file can't be read or written, or is none of a run.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let runs = load::load(&args.files)?;
    if runs.len() > MAX_RUNS {
        return Err(Failure::input(format!(
            "{} runs: at most {MAX_RUNS} can be told apart on a page",
            runs.len()
        )));
    }
    let json = JsonOut::open(args.json.as_deref())?;
    if let Some(path) = &args.html {
        fs::write(path, page::page(&runs))
            .map_err(|e| Failure::input(format!("--html {}: {e}", path.display())))?;
    }
    json.write(&summary(&runs), &text(&runs))
}

/// What stands in the table, for each lane of each run.
fn lines(runs: &[Run]) -> impl Iterator<Item = (&Run, &str, Part, &Latency)> {
    runs.iter().flat_map(|run| {
        run.lanes.iter().flat_map(move |(tag, lane)| {
            let latency = Part::ALL
                .into_iter()
                .filter_map(|part| Some((part, lane.latency.get(&part)?)));
            latency.map(move |(part, latency)| (run, tag.as_str(), part, latency))
        })
    })
}

fn first<'a>(runs: &'a [Run], tag: &str, part: Part) -> Option<&'a Latency> {
    runs.first()?.lanes.get(tag)?.latency.get(&part)
}

/// The table for people, with ratios to the first run.
fn text(runs: &[Run]) -> String {
    let mut rows = Table::new(&[
        "run", "lane", "latency", "count", "mean", "p50", "p90", "p99", "p99.9", "max",
    ]);
    for (run, tag, part, latency) in lines(runs) {
        let total = latency.total;
        let times = [total.mean].into_iter().chain(total.at);
        let times: Vec<_> = times.map(table::micros).collect();
        let count = table::count(total.count as u64);
        let head = [&run.name, tag, part.title(), &count].map(str::to_owned);
        rows.row(head.into_iter().chain(times));
        let Some(first) = first(runs, tag, part).filter(|first| !std::ptr::eq(*first, latency))
        else {
            continue;
        };
        let first = first.total;
        let pairs = [(total.count, first.count), (total.mean, first.mean)]
            .into_iter()
            .chain(total.at.into_iter().zip(first.at));
        let ratios = pairs.map(|(of, to)| match to > 0.0 {
            true => format!("{:.2}x", of / to),
            false => "-".into(),
        });
        let head = ["", "", "  ratio to the first"].map(str::to_owned);
        rows.row(head.into_iter().chain(ratios));
    }
    rows.text()
}

fn summary(runs: &[Run]) -> Value {
    let runs_json = runs.iter().map(|run| {
        let mut lanes = Map::new();
        for (_, tag, part, latency) in lines(std::slice::from_ref(run)) {
            let total = latency.total;
            let mut json = json!({
                "count": total.count,
                "mean": total.mean,
                "p50": total.at[0],
                "p90": total.at[1],
                "p99": total.at[2],
                "p999": total.at[3],
                "max": total.at[4],
            });
            let first = first(runs, tag, part).map(|first| first.total);
            if let Some(first) = first.filter(|first| first.mean > 0.0) {
                json["ratio"] = json!({
                    "mean": total.mean / first.mean,
                    "p50": ratio(total.at[0], first.at[0]),
                    "p99": ratio(total.at[2], first.at[2]),
                    "max": ratio(total.at[4], first.at[4]),
                });
            }
            let lane = lanes.entry(tag).or_insert_with(|| json!({}));
            lane[part.member()] = json;
        }
        json!({
            "name": run.name,
            "began_unix_s": run.began_unix_s,
            "seconds": run.seconds(),
            "lanes": lanes,
            "errors": run.errors,
        })
    });
    json!({ "schema": "moonring.report/1", "runs": runs_json.collect::<Vec<_>>() })
}

/// Null where there is nothing to compare with.
fn ratio(of: f64, to: f64) -> Option<f64> {
    (to > 0.0).then_some(of / to)
}
