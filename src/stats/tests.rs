//! Snapshots as a whole: sums, differences, JSON, and reading while workers write.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::OpError;
use crate::store::RawResult;

fn worker() -> Arc<WorkerRecorder> {
    Arc::new(WorkerRecorder::new())
}

/// A snapshot of an engine that accepted just what `workers` completed.
fn read(workers: &[Arc<WorkerRecorder>]) -> Stats {
    let accepted = collect(workers, || ())
        .0
        .iter()
        .map(LaneStats::completed)
        .sum();
    Stats::read(workers, || Intake {
        accepted,
        ..Intake::default()
    })
}

/// Each variant with values that must not matter. Complete, see `each_result_is_counted_under_its_own_name`.
fn all_errors() -> Vec<OpError> {
    vec![
        OpError::NotFound,
        OpError::Leased,
        OpError::NoSpace,
        OpError::ShortBuffer { object_len: None },
        OpError::LengthMismatch {
            object_len: NonZeroU64::new(7),
        },
        OpError::LeaseExpired,
        OpError::NotReady,
        OpError::Busy,
        OpError::AlreadyExists,
        OpError::InvalidArgument,
        OpError::IllegalClient,
        OpError::NoSegment,
        OpError::TransferFailed,
        OpError::ChecksumMismatch,
        OpError::RpcFailed,
        OpError::RpcTimedOut,
        OpError::Unavailable,
        OpError::Unsupported,
        OpError::StoreInternal,
        OpError::StorePanicked,
        OpError::WrongResultCount,
        OpError::BadResult,
        OpError::TimedOut { started: false },
        OpError::TimedOut { started: true },
        OpError::Cancelled { started: false },
        OpError::Cancelled { started: true },
        OpError::ShutDown,
        OpError::Forked,
        OpError::Store(-4711),
    ]
}

#[test]
fn each_result_is_counted_under_its_own_name() {
    let worker = worker();
    let errors = all_errors();
    let names: Vec<_> = errors.iter().map(OpError::name).collect();
    assert_eq!(names, OpError::NAMES);
    for op in OpKind::ALL {
        for (i, error) in errors.iter().enumerate() {
            assert_eq!(error.code(), i);
            worker.lane(op).result(&Err(*error), 1 + i as u64);
        }
    }
    let stats = read(&[worker]);
    for op in OpKind::ALL {
        let counted: Vec<_> = stats.lane(op).by_code().collect();
        let expected: Vec<_> = names.iter().copied().zip(1..).collect();
        assert_eq!(counted, expected);
        assert_eq!(stats.lane(op).last_store_code, Some(-4711));
    }
}

#[test]
fn lanes_are_the_sums_over_workers() {
    let (a, b) = (worker(), worker());
    let lane = a.lane(OpKind::Retrieve);
    lane.op_waits(1_000, 3);
    lane.call(2, 3, 2, 50_000);
    lane.folded(1, 4096);
    lane.moved(8192);
    lane.op_totals(60_000, 3);
    lane.result(&Ok(4096), 2);
    lane.result(&Err(OpError::NotFound), 1);
    let lane = b.lane(OpKind::Retrieve);
    lane.op_waits(2_000, 1);
    lane.call(1, 1, 1, u64::MAX);
    lane.moved(4096);
    lane.op_totals(u64::MAX, 1);
    lane.result(&Ok(4096), 1);
    b.lane(OpKind::Lookup).result(&Ok(0), 5);

    let stats = read(&[a, b]);
    let retrieve = stats.lane(OpKind::Retrieve);
    assert_eq!(retrieve.op, OpKind::Retrieve);
    assert_eq!((retrieve.calls, retrieve.keys, retrieve.ops), (2, 3, 4));
    assert_eq!(retrieve.callers, 3);
    assert_eq!((retrieve.folded_ops, retrieve.folded_bytes), (1, 4096));
    assert_eq!(retrieve.bytes, 8192 + 4096);
    assert_eq!(retrieve.saturated, 2);
    assert_eq!(retrieve.ops_per_call(), 2.0);
    assert_eq!(retrieve.keys_per_call(), 1.5);
    assert_eq!(retrieve.callers_per_call(), 1.5);
    assert_eq!(
        retrieve.by_code().collect::<Vec<_>>(),
        [("ok", 3), ("not_found", 1)]
    );
    assert_eq!(retrieve.count("ok"), 3);
    assert_eq!(retrieve.count("no such name"), 0);
    assert_eq!(retrieve.last_store_code, None);
    assert_eq!(retrieve.queue().count_at(1_000), 3);
    assert_eq!(retrieve.queue().len(), 4);
    assert_eq!(retrieve.call().count_at(50_000), 1);
    assert_eq!(retrieve.call().count_at(HIGHEST_NS), 1);
    assert_eq!(retrieve.total().count_at(60_000), 3);
    assert_eq!(retrieve.total().len(), 4);
    assert_eq!(stats.lane(OpKind::Lookup).count("absent"), 5);
    assert_eq!(stats.engine.completed, 9);
    assert_eq!(stats.lane(OpKind::Store), &LaneStats::new(OpKind::Store));
}

#[test]
fn a_call_of_one_is_a_call_of_one_key_one_op_and_one_caller() {
    let (short, long) = (worker(), worker());
    short.lane(OpKind::Lookup).call_of_one(700);
    long.lane(OpKind::Lookup).call(1, 1, 1, 700);
    assert_eq!(read(&[short]), read(&[long]));
}

#[test]
fn in_flight_is_accepted_minus_completed() {
    let worker = worker();
    worker.lane(OpKind::Delete).result(&Ok(0), 7);
    let intake = Intake {
        quarantined: 0,
        accepted: 10,
        refused: 4,
        credits_in_use: 5,
        pairs: 2,
        clients: 1,
    };
    let engine = Stats::read(&[worker], || intake).engine;
    let expected = EngineCounts {
        quarantined: 0,
        accepted: 10,
        completed: 7,
        refused: 4,
        in_flight: 3,
        credits_in_use: 5,
        pairs: 2,
        clients: 1,
    };
    assert_eq!(engine, expected);
}

/// Counts something of everything, more with each `round`.
fn work(worker: &WorkerRecorder, round: u64) {
    for op in OpKind::ALL {
        let n = round * 10 + op.index() as u64;
        let lane = worker.lane(op);
        lane.op_waits(n * 100, n);
        lane.call(n, n + 1, n + 2, n * 1_000);
        lane.folded(n, n * 7);
        lane.moved(n * 11);
        lane.op_totals(if n.is_multiple_of(2) { n } else { u64::MAX }, n);
        lane.result(&Ok(1), n);
        lane.result(&Err(OpError::Store(-(round as i32))), 1);
    }
}

#[test]
fn since_is_what_was_counted_between() {
    let (all, second) = (worker(), worker());
    work(&all, 1);
    let earlier = read(std::slice::from_ref(&all));
    work(&all, 2);
    work(&second, 2);
    let later = read(std::slice::from_ref(&all));
    assert_eq!(later.since(&earlier).lanes, read(&[second]).lanes);
    assert_eq!(later.since(&Stats::default()).lanes, later.lanes);

    let nothing = later.since(&later);
    assert_eq!(nothing.lanes, Stats::default().lanes);
    assert_eq!(nothing.engine, EngineCounts::default());
    // The wrong way round: no panic, nothing below 0.
    assert_eq!(earlier.since(&later), nothing);
}

#[test]
fn since_keeps_what_is_now() {
    let stats = |n: u64| Stats {
        engine: EngineCounts {
            quarantined: 0,
            accepted: 10 * n,
            completed: 9 * n,
            refused: 3 * n,
            in_flight: n,
            credits_in_use: 2 * n,
            pairs: n,
            clients: n,
        },
        ..Stats::default()
    };
    let expected = EngineCounts {
        quarantined: 0,
        accepted: 20,
        completed: 18,
        refused: 6,
        in_flight: 3,
        credits_in_use: 6,
        pairs: 3,
        clients: 3,
    };
    assert_eq!(stats(3).since(&stats(1)).engine, expected);
}

#[test]
fn merged_lanes_are_those_of_one_engine_with_both_workers() {
    let (a, b) = (worker(), worker());
    work(&a, 1);
    work(&b, 2);
    let mut merged = read(std::slice::from_ref(&a));
    let other = read(std::slice::from_ref(&b));
    for (lane, other) in merged.lanes.iter_mut().zip(&other.lanes) {
        lane.merge(other);
    }
    assert_eq!(merged.lanes, read(&[a, b]).lanes);
}

#[test]
fn json_has_the_fields_of_reports() {
    let worker = worker();
    let lane = worker.lane(OpKind::Lookup);
    lane.op_waits(100, 2);
    lane.call(2, 2, 1, 200);
    lane.op_totals(250, 2);
    lane.result(&Ok(1), 1);
    lane.result(&Ok(0), 1);
    let json = read(&[worker]).to_json();
    let lanes: Vec<_> = json["lanes"].as_object().unwrap().keys().collect();
    assert_eq!(lanes, ["lookup", "retrieve", "store", "delete"]);
    let summary = |count: u64, us: &str| {
        format!(
            r#"{{"count":{count},"mean":{us},"p50":{us},"p90":{us},"p99":{us},"p999":{us},"max":{us}}}"#
        )
    };
    assert_eq!(
        json["lanes"]["lookup"].to_string(),
        format!(
            r#"{{"ops":2,"calls":1,"ops_per_call":2.0,"keys_per_call":2.0,"callers_per_call":1.0,"by_code":{{"present":1,"absent":1}},"latency_us":{},"queue_us":{},"call_us":{}}}"#,
            summary(2, "0.25"),
            summary(2, "0.1"),
            summary(1, "0.2"),
        )
    );
    let empty = summary(0, "0.0");
    assert_eq!(
        json["lanes"]["delete"].to_string(),
        format!(
            r#"{{"ops":0,"calls":0,"ops_per_call":0.0,"keys_per_call":0.0,"callers_per_call":0.0,"by_code":{{}},"latency_us":{empty},"queue_us":{empty},"call_us":{empty}}}"#
        )
    );
    assert_eq!(
        json["engine"].to_string(),
        r#"{"accepted":2,"completed":2,"refused":0,"in_flight":0,"quarantined":0}"#
    );
}

#[test]
fn debug_output_stays_short() {
    let shown = format!("{:?}", Stats::default());
    assert!(shown.len() < 4_000, "{} bytes", shown.len());
}

#[test]
fn workers_share_no_cache_line() {
    assert!(align_of::<WorkerRecorder>() >= 64);
}

/// Fails when `test` hangs.
fn within(limit: Duration, test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if wait.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("not done after {limit:?}");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn assert_grew(new: &Stats, old: &Stats) {
    assert!(new.engine.accepted >= old.engine.accepted);
    assert!(new.engine.completed >= old.engine.completed);
    for (new, old) in new.lanes.iter().zip(&old.lanes) {
        let counts = |lane: &LaneStats| {
            let mut counts = vec![lane.calls, lane.keys, lane.ops, lane.callers, lane.bytes];
            counts.extend(lane.codes);
            counts
        };
        assert!(counts(new).iter().zip(counts(old)).all(|(n, o)| *n >= o));
        for (new, old) in [
            (&new.queue, &old.queue),
            (&new.call, &old.call),
            (&new.total, &old.total),
        ] {
            for bin in old.iter_recorded() {
                assert!(new.count_at(bin.value_iterated_to()) >= bin.count_at_value());
            }
        }
    }
}

/// A submitter, two workers and two readers, all at once.
#[test]
fn snapshots_while_workers_write_never_contradict_themselves() {
    const CALLS: u64 = 40_000;
    const READS: u64 = 50;
    const OPS_PER_CALL: u64 = 5;
    within(Duration::from_secs(120), || {
        let accepted = AtomicU64::new(0);
        let reads = AtomicU64::new(0);
        let working = AtomicBool::new(true);
        let workers = [worker(), worker()];
        let snapshot = || {
            Stats::read(&workers, || Intake {
                accepted: accepted.load(Ordering::Relaxed),
                ..Intake::default()
            })
        };
        let reader = || {
            let mut last = Stats::default();
            while working.load(Ordering::Relaxed) {
                let stats = snapshot();
                assert!(stats.engine.completed <= stats.engine.accepted);
                assert_eq!(
                    stats.engine.in_flight,
                    stats.engine.accepted - stats.engine.completed
                );
                for lane in &stats.lanes {
                    let completed = lane.completed();
                    assert!(completed <= lane.ops, "{} of {}", completed, lane.ops);
                    assert!(completed <= lane.queue.len());
                    assert!(completed <= lane.total.len());
                }
                assert_grew(&stats, &last);
                last = stats;
                reads.fetch_add(1, Ordering::Relaxed);
            }
        };
        let mut calls = 0;
        std::thread::scope(|scope| {
            let readers = [scope.spawn(reader), scope.spawn(reader)];
            let mut rings = Vec::new();
            let mut threads = Vec::new();
            for worker in &workers {
                let (ring, calls) = mpsc::sync_channel::<u64>(64);
                rings.push(ring);
                threads.push(scope.spawn(move || {
                    for call in calls {
                        let lane = worker.lane(OpKind::ALL[call as usize % 4]);
                        let result: RawResult = match call % 3 {
                            0 => Err(OpError::NotFound),
                            value => Ok(value),
                        };
                        lane.op_waits(call, OPS_PER_CALL);
                        lane.call(OPS_PER_CALL - 1, OPS_PER_CALL, 2, call * 3);
                        lane.folded(1, 10);
                        lane.moved(100);
                        lane.op_totals(call * 5, OPS_PER_CALL);
                        lane.result(&result, OPS_PER_CALL);
                    }
                }));
            }
            // Goes on until the readers have read often enough, or one of them has failed.
            while (calls < CALLS || reads.load(Ordering::Relaxed) < READS)
                && !readers.iter().any(|reader| reader.is_finished())
            {
                for call in calls..calls + 8 {
                    accepted.fetch_add(OPS_PER_CALL, Ordering::Relaxed);
                    rings[call as usize / 4 % 2].send(call).unwrap();
                }
                calls += 8;
            }
            drop(rings);
            for thread in threads {
                thread.join().unwrap();
            }
            working.store(false, Ordering::Relaxed);
        });

        let stats = snapshot();
        assert_eq!(stats.engine.completed, calls * OPS_PER_CALL);
        assert_eq!(stats.engine.in_flight, 0);
        for lane in &stats.lanes {
            assert_eq!(lane.calls, calls / 4);
            assert_eq!(lane.ops, calls / 4 * OPS_PER_CALL);
            assert_eq!(lane.keys, calls / 4 * (OPS_PER_CALL - 1));
            assert_eq!(lane.callers, calls / 4 * 2);
            assert_eq!(lane.folded_ops, calls / 4);
            assert_eq!(lane.folded_bytes, calls / 4 * 10);
            assert_eq!(lane.bytes, calls / 4 * 100);
            assert_eq!(lane.completed(), lane.ops);
            assert_eq!(lane.queue.len(), lane.ops);
            assert_eq!(lane.total.len(), lane.ops);
            assert_eq!(lane.call.len(), lane.calls);
        }
    });
}
