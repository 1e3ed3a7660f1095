//! Latencies that the engine can't see: those of its callers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moonring::OpKind;
use moonring::stats::{Histogram, latency_histogram};

/// What a histogram in a [`Book`] is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// From an op's submit until its caller has the completion in hand.
    Caller(OpKind),
    /// The same, from when the op should have been submitted: corrected for coordinated omission.
    Corrected(OpKind),
    /// Whole requests of a trace.
    Request,
}

/// How many series there are.
const SERIES: usize = 9;

impl Series {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Series> {
        let ops = OpKind::ALL.into_iter();
        ops.flat_map(|op| [Series::Caller(op), Series::Corrected(op)])
            .chain([Series::Request])
    }

    const fn index(self) -> usize {
        match self {
            Series::Caller(op) => op.index(),
            Series::Corrected(op) => 4 + op.index(),
            Series::Request => 8,
        }
    }

    /// Its tag in an `.hlog`: `retrieve.caller`.
    pub fn tag(self) -> String {
        match self {
            Series::Caller(op) => format!("{op}.caller"),
            Series::Corrected(op) => format!("{op}.corrected"),
            Series::Request => "request".into(),
        }
    }
}

/// Histograms of nanoseconds, one for each series that has values.
#[derive(Clone, Debug, Default)]
pub struct Latencies([Option<Box<Histogram<u64>>>; SERIES]);

impl Latencies {
    /// `n` times the latency of `time`.
    pub fn record(&mut self, series: Series, time: Duration, n: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0[series.index()]
            .get_or_insert_with(|| Box::new(latency_histogram()))
            .saturating_record_n(ns, n);
    }

    /// The histogram; `None` where there are no values.
    pub fn get(&self, series: Series) -> Option<&Histogram<u64>> {
        self.0[series.index()].as_deref()
    }

    /// Values in all of the callers' series.
    pub fn ops(&self) -> u64 {
        let ops = OpKind::ALL.map(|op| self.get(Series::Caller(op)).map_or(0, Histogram::len));
        ops.iter().sum()
    }

    fn add(&mut self, other: &Latencies) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            match (mine, theirs) {
                // All have the bounds of `latency_histogram`, which is what the operator needs.
                (Some(mine), Some(theirs)) => **mine += theirs.as_ref(),
                (mine, Some(theirs)) => *mine = Some(theirs.clone()),
                (_, None) => {}
            }
        }
    }

    /// What came to it since `earlier`.
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        let mut since = self.clone();
        for (new, old) in since.0.iter_mut().zip(&earlier.0) {
            if let (Some(new), Some(old)) = (new, old) {
                // The same bounds, and no bin that went down: it can't fail.
                **new -= old.as_ref();
            }
        }
        since
    }
}

/// Where one thread records, and others look from time to time.
#[derive(Clone, Debug, Default)]
pub struct Book(Arc<Mutex<Latencies>>);

impl Book {
    /// The histograms, for a burst of records. A reader holds them for as long as a copy takes, once an interval.
    pub fn open(&self) -> MutexGuard<'_, Latencies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All books of a run.
#[derive(Debug, Default)]
pub struct Books(Mutex<Vec<Book>>);

impl Books {
    /// A new one, for one thread.
    pub fn book(&self) -> Book {
        let book = Book::default();
        self.lock().push(book.clone());
        book
    }

    /// The sum of all.
    pub fn read(&self) -> Latencies {
        let mut sum = Latencies::default();
        for book in self.lock().iter() {
            sum.add(&book.open());
        }
        sum
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Book>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_add_up_and_differences_are_what_came_between() {
        let books = Books::default();
        let (a, b) = (books.book(), books.book());
        let caller = Series::Caller(OpKind::Store);
        a.open().record(caller, Duration::from_nanos(100), 2);
        let earlier = books.read();
        a.open().record(caller, Duration::from_nanos(200), 1);
        b.open().record(caller, Duration::from_nanos(50), 4);
        b.open().record(Series::Request, Duration::from_nanos(7), 1);
        let all = books.read();
        assert_eq!(all.ops(), 7);
        let since = all.since(&earlier);
        assert_eq!(since.ops(), 5);
        let between = since.get(caller).expect("values");
        assert_eq!((between.min(), between.max()), (50, 200));
        assert_eq!(since.get(Series::Request).map(Histogram::len), Some(1));
        assert!(all.get(Series::Corrected(OpKind::Store)).is_none());
    }

    #[test]
    fn every_series_has_a_place_and_a_tag_of_its_own() {
        let mut places: Vec<_> = Series::all().map(Series::index).collect();
        places.sort_unstable();
        assert_eq!(places, (0..SERIES).collect::<Vec<_>>());
        let tags: std::collections::HashSet<_> = Series::all().map(Series::tag).collect();
        assert_eq!(tags.len(), SERIES);
    }
}
