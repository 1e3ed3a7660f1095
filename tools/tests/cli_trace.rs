//! The published trace is read whole, and its known counts come out.

mod support;

use moonring_tools::oracle::{self, Counts};
use moonring_tools::trace::Trace;

#[test]
fn the_published_trace_has_its_published_counts() {
    let Some(path) = support::published() else {
        return;
    };
    let trace = Trace::load(&path, None);
    assert_eq!(trace.error, None);
    let first = oracle::count(&trace.requests[..1000]);
    let want = Counts {
        requests: 1000,
        blocks: 27_305,
        hit_blocks: 5_791,
        stored_blocks: 21_514,
        objects: 21_514,
    };
    assert_eq!(first, want);
    let want = Counts {
        requests: 12_031,
        blocks: 288_500,
        hit_blocks: 105_710,
        stored_blocks: 182_790,
        objects: 182_790,
    };
    assert_eq!(oracle::count(&trace.requests), want);
    assert_eq!(trace.blocks(), want.blocks);
    assert_eq!(trace.largest_request(), 247);
}
