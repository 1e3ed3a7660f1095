//! The right counts of a replay, from a set of ids alone: a store that never evicts, one request after the other.

use std::collections::HashSet;

use crate::trace::Request;

/// What a sequential replay must count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Blocks of all requests.
    pub blocks: u64,
    /// Blocks of the leading part that was there when the request came.
    pub hit_blocks: u64,
    /// All other blocks: each is stored, also one that is there behind a gap or that stands twice in the request.
    pub stored_blocks: u64,
    /// Different blocks: what the store holds in the end.
    pub objects: u64,
}

/// Counts a trace.
pub fn count(requests: &[Request]) -> Counts {
    let mut there: HashSet<u64> = HashSet::new();
    let mut counts = Counts::default();
    for request in requests {
        let ids = &request.hash_ids;
        let hits = ids.iter().take_while(|id| there.contains(id)).count();
        there.extend(ids);
        counts.requests += 1;
        counts.blocks += ids.len() as u64;
        counts.hit_blocks += hits as u64;
        counts.stored_blocks += (ids.len() - hits) as u64;
    }
    counts.objects = there.len() as u64;
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_twins_are_stored() {
        let request = |ids: &[u64]| Request {
            timestamp: 0,
            input_length: 0,
            output_length: 0,
            hash_ids: ids.to_vec(),
        };
        // 5 stands twice; then 2 is there behind the gap 9; then all are there.
        let trace = [&[1, 2, 5, 5][..], &[1, 9, 2], &[], &[5, 5, 9]].map(request);
        let want = Counts {
            requests: 4,
            blocks: 10,
            hit_blocks: 4,
            stored_blocks: 6,
            objects: 4,
        };
        assert_eq!(count(&trace), want);
    }
}
