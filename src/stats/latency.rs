//! Latencies in HdrHistogram's bucket layout, written by one thread and read by others at any time.
//!
//! Two significant digits give 256 sub-buckets: bucket 0 has one bin per nanosecond for 0..256, each bucket k
//! after it 128 bins of 2^k ns for the upper half of 0..256 * 2^k. So the bin of a value is `(k << 7) + (v >> k)`,
//! where k is by how many bits `v` is longer than 8.

use crossbeam_utils::CachePadded;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::count::Count;

/// The longest latency that is told from longer ones, in nanoseconds: one hour.
pub const HIGHEST_NS: u64 = 3_600_000_000_000;

const SIGNIFICANT_DIGITS: u8 = 2;

/// HdrHistogram's rule: the power of two that holds 2 * 10^digits = 200 values, here 256.
const SUB_BUCKET_BITS: u32 = 8;

/// Bins up to the end of the bucket that holds [`HIGHEST_NS`].
const BINS: usize = (bucket_of(HIGHEST_NS) as usize + 2) << (SUB_BUCKET_BITS - 1);

/// That of [`HIGHEST_NS`].
const LAST_BIN: usize = bin_of(HIGHEST_NS);

#[inline]
const fn bucket_of(ns: u64) -> u32 {
    let mask = (1 << SUB_BUCKET_BITS) - 1;
    (u64::BITS - SUB_BUCKET_BITS) - (ns | mask).leading_zeros()
}

#[inline]
const fn bin_of(ns: u64) -> usize {
    let bucket = bucket_of(ns);
    ((bucket << (SUB_BUCKET_BITS - 1)) as u64 + (ns >> bucket)) as usize
}

/// The lowest value of a bin.
const fn value_of(bin: usize) -> u64 {
    let half = 1 << (SUB_BUCKET_BITS - 1);
    let bucket = (bin / half).saturating_sub(1);
    ((bin - bucket * half) as u64) << bucket
}

/// An empty histogram for nanoseconds with the bounds of all histograms here. For a tool's own latencies;
/// record with [`Histogram::saturating_record`].
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, HIGHEST_NS, SIGNIFICANT_DIGITS)
        .expect("constant bounds that HdrHistogram takes")
}

/// A histogram of nanoseconds as JSON in **microseconds**: `count, mean, p50, p90, p99, p999, max`.
/// All 0 where nothing was recorded.
pub fn summary_us(ns: &Histogram<u64>) -> Value {
    let us = |ns: u64| ns as f64 / 1e3;
    json!({
        "count": ns.len(),
        "mean": ns.mean() / 1e3,
        "p50": us(ns.value_at_quantile(0.5)),
        "p90": us(ns.value_at_quantile(0.9)),
        "p99": us(ns.value_at_quantile(0.99)),
        "p999": us(ns.value_at_quantile(0.999)),
        "max": us(ns.max()),
    })
}

/// `later - earlier`, bin by bin. [`Histogram::subtract`] stops half-way where a bin would go below 0.
pub(super) fn difference(later: &Histogram<u64>, earlier: &Histogram<u64>) -> Histogram<u64> {
    let mut difference = Histogram::new_from(later);
    for bin in later.iter_recorded() {
        let value = bin.value_iterated_to();
        let count = bin.count_at_value().saturating_sub(earlier.count_at(value));
        if count > 0 {
            difference.saturating_record_n(value, count);
        }
    }
    difference
}

/// Where one thread records latencies.
///
/// There is no exact sum or maximum beside the bins: the histogram's own are at most 0.8 % off, can be subtracted,
/// and don't contradict its percentiles. A sum of nanoseconds over all ops in flight would wrap within days.
#[derive(Debug)]
pub(super) struct LatencyRecorder {
    /// On the heap and padded, so that two workers' bins share no cache line.
    bins: Box<CachePadded<[Count; BINS]>>,
    saturated: Count,
}

impl LatencyRecorder {
    pub(super) fn new() -> Self {
        Self {
            bins: Box::new(CachePadded::new([const { Count::new() }; BINS])),
            saturated: Count::new(),
        }
    }

    /// Records `count` latencies of `ns` nanoseconds. One thread only.
    #[inline(always)]
    pub(super) fn record(&self, ns: u64, count: u64) {
        // One look tells those that have a bin of their own from those that are in the last, or beyond.
        match bin_of(ns) {
            bin if bin < LAST_BIN => self.bins[bin].add(count),
            _ => self.record_long(ns, count),
        }
    }

    #[cold]
    fn record_long(&self, ns: u64, count: u64) {
        self.bins[LAST_BIN].add(count);
        if ns > HIGHEST_NS {
            self.saturated.add(count);
        }
    }

    /// Adds all that was recorded to `histogram`, one of [`latency_histogram`]'s.
    pub(super) fn snapshot_into(&self, histogram: &mut Histogram<u64>) {
        for (bin, count) in self.bins.iter().enumerate() {
            let count = count.get();
            if count > 0 {
                histogram.saturating_record_n(value_of(bin), count);
            }
        }
    }

    /// How many latencies were beyond [`HIGHEST_NS`].
    pub(super) fn saturated(&self) -> u64 {
        self.saturated.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64, then cut to a random length, so that all buckets are hit.
    fn random_values(seed: u64) -> impl Iterator<Item = u64> {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^= z >> 31;
            (z >> 6) >> (z & 63).min(57)
        })
    }

    /// Around each power of two, and the ends of the range.
    fn edges() -> impl Iterator<Item = u64> {
        let powers = (0..63).flat_map(|bit| {
            let power = 1_u64 << bit;
            [power - 1, power, power + 1]
        });
        powers.chain([HIGHEST_NS - 1, HIGHEST_NS])
    }

    fn snapshot(recorder: &LatencyRecorder) -> Histogram<u64> {
        let mut histogram = latency_histogram();
        recorder.snapshot_into(&mut histogram);
        histogram
    }

    #[test]
    fn bins_are_those_of_hdrhistogram() {
        let theirs = latency_histogram();
        assert_eq!(theirs.distinct_values(), BINS);
        for bin in 0..BINS {
            assert_eq!(bin_of(value_of(bin)), bin);
        }
        for ns in edges()
            .chain(random_values(1).take(100_000))
            .filter(|ns| *ns <= HIGHEST_NS)
        {
            assert_eq!(
                value_of(bin_of(ns)),
                theirs.lowest_equivalent(ns),
                "of {ns}"
            );
        }
    }

    #[test]
    fn reads_as_if_recorded_in_a_histogram() {
        let ours = LatencyRecorder::new();
        let mut theirs = latency_histogram();
        let values = edges().chain(random_values(2).take(200_000));
        for (i, ns) in values.enumerate() {
            let count = 1 + i as u64 % 3;
            ours.record(ns, count);
            theirs.record_n(ns.min(HIGHEST_NS), count).unwrap();
        }
        let ours = snapshot(&ours);
        for percentile in 0..=1000 {
            let percentile = f64::from(percentile) / 10.0;
            assert_eq!(
                ours.value_at_percentile(percentile),
                theirs.value_at_percentile(percentile),
                "at {percentile} %"
            );
        }
        assert_eq!(ours.mean(), theirs.mean());
        assert_eq!(ours.min(), theirs.min());
        assert_eq!(ours.max(), theirs.max());
        assert_eq!(ours, theirs);
    }

    #[test]
    fn recorders_share_no_cache_line() {
        let recorder = LatencyRecorder::new();
        assert!(align_of_val(&*recorder.bins) >= 64);
    }

    #[test]
    fn zero_stays_zero() {
        let recorder = LatencyRecorder::new();
        recorder.record(0, 3);
        let read = snapshot(&recorder);
        assert_eq!((read.len(), read.min(), read.max()), (3, 0, 0));
    }

    #[test]
    fn beyond_an_hour_saturates_and_is_counted() {
        let recorder = LatencyRecorder::new();
        recorder.record(HIGHEST_NS, 1);
        assert_eq!(recorder.saturated(), 0);
        recorder.record(HIGHEST_NS + 1, 2);
        recorder.record(u64::MAX, 4);
        assert_eq!(recorder.saturated(), 6);
        let read = snapshot(&recorder);
        assert_eq!(read.len(), 7);
        assert_eq!(read.count_at(HIGHEST_NS), 7);
    }

    #[test]
    fn snapshots_add_up() {
        let recorder = LatencyRecorder::new();
        recorder.record(1000, 2);
        let mut histogram = snapshot(&recorder);
        recorder.snapshot_into(&mut histogram);
        assert_eq!(histogram.len(), 4);
    }

    #[test]
    fn difference_is_what_was_recorded_between() {
        let recorder = LatencyRecorder::new();
        let mut between = latency_histogram();
        for ns in random_values(3).take(10_000) {
            recorder.record(ns, 1);
        }
        let earlier = snapshot(&recorder);
        for ns in random_values(4).take(10_000) {
            recorder.record(ns, 1);
            between.record(ns.min(HIGHEST_NS)).unwrap();
        }
        let later = snapshot(&recorder);
        assert_eq!(difference(&later, &earlier), between);
        assert!(difference(&later, &later).is_empty());
        // The wrong way round is no panic and nothing below 0.
        assert!(difference(&earlier, &later).is_empty());
    }

    #[test]
    fn summary_is_in_microseconds() {
        let mut histogram = latency_histogram();
        // Below 256 ns bins are exact.
        histogram.record_n(100, 998).unwrap();
        histogram.record_n(200, 2).unwrap();
        assert_eq!(
            summary_us(&histogram).to_string(),
            r#"{"count":1000,"mean":0.1002,"p50":0.1,"p90":0.1,"p99":0.1,"p999":0.2,"max":0.2}"#
        );
        assert_eq!(
            summary_us(&latency_histogram()).to_string(),
            r#"{"count":0,"mean":0.0,"p50":0.0,"p90":0.0,"p99":0.0,"p999":0.0,"max":0.0}"#
        );
    }
}
