//! A `tracing` span for each store call (feature `spans`): `store_call`, of level DEBUG.
//!
//! Fields: `op`, `keys`, `bytes` (of the buffers; only of retrieves and stores), and at its end `answered` (results that the
//! store gave) or `error` (of the call as a whole). Without the feature nothing of it is compiled; with it and
//! without a subscriber that wants it, a call costs a load and a branch.

use tracing::field::Empty;
use tracing::span::EnteredSpan;

use crate::OpKind;
use crate::store::CallResult;

/// Enters the span of a call. `lens`: of the buffers.
pub(crate) fn store_call(op: OpKind, keys: usize, lens: &[usize]) -> EnteredSpan {
    let has_buffers = matches!(op, OpKind::Retrieve | OpKind::Store);
    tracing::debug_span!(
        target: "moonring",
        "store_call",
        op = op.name(),
        keys,
        bytes = has_buffers.then(|| lens.iter().sum::<usize>()),
        answered = Empty,
        error = Empty,
    )
    .entered()
}

/// Writes down how the call ended, and leaves the span.
pub(crate) fn returned(span: EnteredSpan, result: &CallResult) {
    match result {
        Ok(answered) => span.record("answered", answered),
        Err(error) => span.record("error", error.name()),
    };
}
