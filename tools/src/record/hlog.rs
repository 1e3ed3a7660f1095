//! HdrHistogram's files: interval logs (`.hlog`) and percentile distributions (`.hgrm`).

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{
    IntervalLogWriter, IntervalLogWriterBuilder, IntervalLogWriterError, Tag,
};
use moonring::stats::Histogram;

use crate::cli::Failure;

/// Files that a run writes beside its report. They are made before the run, so that a bad name ends no long run.
#[derive(Debug, Default)]
pub struct Outputs {
    hlog: Option<(PathBuf, File)>,
    hgrm: Option<PathBuf>,
}

impl Outputs {
    /// Makes the `.hlog` and the folder for the `.hgrm` files.
    ///
    /// # Errors
    /// One of them can't be made.
    pub fn create(hlog: Option<&Path>, hgrm: Option<&Path>) -> Result<Self, Failure> {
        let failed = |option: &str, path: &Path, e: io::Error| {
            Failure::input(format!("{option} {}: {e}", path.display()))
        };
        if let Some(folder) = hgrm {
            fs::create_dir_all(folder).map_err(|e| failed("--hgrm", folder, e))?;
        }
        let hlog = hlog.map(|path| match File::create(path) {
            Ok(file) => Ok((path.to_owned(), file)),
            Err(e) => Err(failed("--hlog", path, e)),
        });
        Ok(Self {
            hlog: hlog.transpose()?,
            hgrm: hgrm.map(Path::to_owned),
        })
    }

    /// The interval log, if one was asked for: once.
    pub(super) fn take_hlog(&mut self) -> Option<(PathBuf, File)> {
        self.hlog.take()
    }

    /// Writes `TAG.hgrm` for each histogram that has values, if asked to.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn write_hgrm<'a>(
        &self,
        histograms: impl Iterator<Item = (String, &'a Histogram<u64>)>,
    ) -> Result<(), Failure> {
        let Some(folder) = &self.hgrm else {
            return Ok(());
        };
        for (tag, histogram) in histograms.filter(|(_, h)| !h.is_empty()) {
            let path = folder.join(format!("{tag}.hgrm"));
            File::create(&path)
                .and_then(|file| {
                    let mut out = BufWriter::new(file);
                    hgrm(histogram, &mut out)?;
                    out.flush()
                })
                .map_err(|e| Failure::run(format!("--hgrm {}: {e}", path.display())))?;
        }
        Ok(())
    }
}

/// An `.hlog` under way.
pub(super) struct Hlog<'a, W: Write>(IntervalLogWriter<'a, 'a, W, V2DeflateSerializer>);

impl<'a, W: Write> Hlog<'a, W> {
    /// Writes the header. `began` is what intervals count from.
    pub(super) fn begin(
        began: SystemTime,
        out: &'a mut W,
        serializer: &'a mut V2DeflateSerializer,
    ) -> io::Result<Self> {
        let comments = [
            concat!("[Logged with moonring ", env!("CARGO_PKG_VERSION"), "]"),
            "[Histogram log format version 1.3]",
            "[Values are latencies in nanoseconds; Interval_Max is in milliseconds]",
            "[Tags: LANE is submit to completion per op, LANE.queue submit to store call per op, LANE.call the \
             store's time per call, LANE.caller submit until the caller has it, LANE.corrected the same from when \
             the op was due, request a request of a trace]",
        ];
        let mut builder = IntervalLogWriterBuilder::new();
        for comment in comments {
            builder.add_comment(comment);
        }
        builder
            .with_start_time(began)
            .with_base_time(began)
            .with_max_value_divisor(1e6)
            .begin_log_with(out, serializer)
            .map(Self)
    }

    /// Writes a line for each histogram that has values.
    pub(super) fn interval<'h>(
        &mut self,
        start: Duration,
        length: Duration,
        histograms: impl Iterator<Item = (String, &'h Histogram<u64>)>,
    ) -> io::Result<()> {
        for (tag, histogram) in histograms.filter(|(_, h)| !h.is_empty()) {
            // None of our tags has a character that is not allowed.
            let tag = Tag::new(&tag);
            let written = self.0.write_histogram(histogram, start, length, tag);
            written.map_err(|error| match error {
                IntervalLogWriterError::IoError(e) => e,
                IntervalLogWriterError::SerializeError(e) => io::Error::other(e),
            })?;
        }
        Ok(())
    }
}

/// The percentile distribution as HdrHistogram's `outputPercentileDistribution` writes it, in microseconds.
fn hgrm(ns: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    let us = |ns: f64| ns / 1e3;
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let mut count = 0;
    for step in ns.iter_quantiles(5) {
        count += step.count_since_last_iteration();
        let (value, quantile) = (
            us(step.value_iterated_to() as f64),
            step.quantile_iterated_to(),
        );
        write!(out, "{value:12.3} {quantile:2.12} {count:10}")?;
        match quantile < 1.0 {
            true => writeln!(out, " {:14.2}", 1.0 / (1.0 - quantile))?,
            // Nothing is beyond the last.
            false => writeln!(out)?,
        }
    }
    writeln!(
        out,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        us(ns.mean()),
        us(ns.stdev())
    )?;
    writeln!(
        out,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        us(ns.max() as f64),
        ns.len()
    )?;
    // HdrHistogram's rule: the power of two that holds 2 * 10^digits values, and as many doublings as the bounds need.
    let sub_buckets = (2 * 10_u64.pow(ns.sigfig().into())).next_power_of_two();
    let buckets = 2 * ns.distinct_values() as u64 / sub_buckets - 1;
    writeln!(
        out,
        "#[Buckets = {buckets:12}, SubBuckets     = {sub_buckets:12}]"
    )?;
    writeln!(out, "#[Unit    = microseconds]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use moonring::stats::latency_histogram;

    #[test]
    fn a_distribution_is_written_as_others_write_it() {
        let mut histogram = latency_histogram();
        histogram.record_n(100, 3).expect("in bounds");
        histogram.record_n(200_000, 1).expect("in bounds");
        let mut text = Vec::new();
        hgrm(&histogram, &mut text).expect("a Vec takes all");
        let text = String::from_utf8(text).expect("text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "       Value     Percentile TotalCount 1/(1-Percentile)",
                "",
                "       0.100 0.000000000000          3           1.00",
            ]
        );
        let last = lines.iter().position(|line| line.starts_with('#'));
        let last: Vec<_> = lines[last.expect("a footer") - 1]
            .split_whitespace()
            .collect();
        // The highest value that its bin holds.
        assert_eq!(last, ["200.703", "1.000000000000", "4"]);
        assert_eq!(
            lines[lines.len() - 4..],
            [
                "#[Mean    =       50.123, StdDeviation   =       86.642]",
                "#[Max     =      200.703, Total count    =            4]",
                "#[Buckets =           35, SubBuckets     =          256]",
                "#[Unit    = microseconds]",
            ]
        );
    }
}
