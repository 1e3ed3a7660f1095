//! What stalls, on a real Mooncake: the storage node or the master stands still (SIGSTOP) or is killed while ops have deadlines. No op
//! ends late, no thread of the host waits, no byte that may still be written is taken for free; and all is well again when the
//! other side is (issue F3 of the field, Mooncake#1088).

mod common_b;
mod mooncake;
mod standin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common_b::{assert_holds, canary_slot, content, slot_of};
use mooncake::{Mooncake, RESTART, eventually};
use moonring::config::CoreChoice;
use moonring::store::MooncakeStore;
use moonring::{
    Client, Completion, Done, Engine, EngineConfig, HealthState, OpError, OpKind, Pair, Region,
    RegionOptions, SlotClass, SlotPool, StoreOutcome, Submission, SubmitError, Unavailable,
};

const LIMIT: Duration = Duration::from_secs(180);
const BYTES: usize = 4096;
const SLOTS: usize = 1024;
const DEADLINE: Duration = Duration::from_millis(500);
/// How late an op may end on a machine that does many other things. Unloaded it is far below 20 ms; without deadlines none ends here
/// before some seconds more.
const SLACK: Duration = Duration::from_secs(1);
const IN_PROGRESS: OpError = OpError::TimedOut { started: true };
const NEVER_STARTED: OpError = OpError::TimedOut { started: false };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn value(key: &str) -> Vec<u8> {
    content(key.as_bytes(), BYTES)
}

/// An engine whose region has room behind its slots.
struct Host {
    engine: Engine,
    region: Region,
    slots: SlotPool,
}

impl Host {
    fn start(config: EngineConfig, store: Arc<MooncakeStore>) -> Self {
        let region = Region::allocate(RegionOptions::new(BYTES * (SLOTS + 16))).expect("memory");
        let class = SlotClass {
            size: BYTES,
            count: SLOTS,
        };
        let slots = region.slot_pool(&[class]).expect("slots");
        let builder = Engine::builder(store).config(config.cores(CoreChoice::None));
        let engine = builder.region(region.clone()).start().expect("it starts");
        Self {
            engine,
            region,
            slots,
        }
    }

    /// A client that waits as long as it takes, whatever the lanes' defaults are.
    fn patient(&self) -> Client {
        self.engine.client().with_timeout(None)
    }

    fn store_all(&self, keys: &[String]) {
        let items = keys
            .iter()
            .map(|key| (key, slot_of(&self.slots, &value(key))));
        let mut out = Vec::new();
        self.patient().blocking().store_many(items, &mut out);
        for done in out {
            assert_eq!(done.result, Ok(StoreOutcome::Accepted));
        }
    }

    /// What there is has its bytes.
    fn assert_all_there(&self, keys: &[String]) {
        let items = keys
            .iter()
            .map(|key| (key, canary_slot(&self.slots, BYTES)));
        let mut out = Vec::new();
        self.patient().blocking().retrieve_many(items, &mut out);
        for (done, key) in out.into_iter().zip(keys) {
            assert_eq!(done.result, Ok(BYTES as u64), "{key}");
            assert_holds(done.slot.expect("it comes back"), &value(key));
        }
    }

    fn op<'k>(&self, kind: OpKind, key: &'k str) -> Submission<'k> {
        match kind {
            OpKind::Lookup => Submission::lookup(key),
            OpKind::Retrieve => Submission::retrieve(key, canary_slot(&self.slots, BYTES)),
            OpKind::Store => Submission::store(key, slot_of(&self.slots, &value(key))),
            OpKind::Delete => Submission::delete(key),
        }
    }

    /// Ops of each kind, until the engine says that it is well. How long that took.
    fn recovers(&self, pair: &mut Pair, there: &str) -> Duration {
        let took = eventually(RESTART, "healthy again", || {
            for kind in OpKind::ALL {
                let key = match kind {
                    OpKind::Lookup | OpKind::Retrieve => there,
                    _ => "recovers",
                };
                if pair.submit(self.op(kind, key).timeout(None)).is_ok() {
                    pair.wait(1, Some(RESTART)).expect("its end");
                    pair.completions().for_each(drop);
                }
            }
            self.engine.health().state == HealthState::Healthy
        });
        let health = self.engine.health();
        assert!(health.lanes.iter().all(|lane| lane.open.is_none()));
        assert_eq!((health.reasons.len(), health.quarantined), (0, 0));
        assert_eq!(self.engine.stats().engine.quarantined, 0);
        took
    }
}

/// The time that so many of a hundred do not exceed.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent).div_ceil(100).max(1) - 1]
}

/// Looks a key up again and again beside something else; how long each answer took, all of them "yes".
fn lookups_during<R>(host: &Host, key: &str, what: impl FnOnce() -> R) -> (R, Vec<Duration>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let client = host.engine.client();
            let mut times = Vec::new();
            while !over.load(Relaxed) {
                let start = Instant::now();
                assert_eq!(client.blocking().lookup(key), Ok(true));
                times.push(start.elapsed());
                std::thread::sleep(ms(1));
            }
            times
        });
        // Ended by a panic too.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let ending = Over(&over);
        let result = what();
        drop(ending);
        (result, looking.join().expect("lookups"))
    })
}

/// F3, Mooncake#1088: a transfer waited its fixed 60 s.
#[test]
fn f3_retrieves_from_a_node_that_stands_still_end_at_their_deadline_and_lookups_go_on() {
    let Some(mooncake) = Mooncake::up("f3", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let config = EngineConfig::default()
        .dedicated(OpKind::Lookup, 1)
        .dedicated(OpKind::Retrieve, 4);
    let host = Host::start(config, mooncake.open());
    let engine = &host.engine;
    let mut pair = engine.pair(512).unwrap();
    let keys: Vec<_> = (0..201).map(|i| format!("key-{i}")).collect();
    host.store_all(&keys);
    host.assert_all_there(&keys);
    let ((), mut before) = lookups_during(&host, "key-0", || std::thread::sleep(ms(1000)));

    mooncake.command("stop-node");
    let span = host.region.uncarved();
    let span = host.region.span(span.offset, BYTES);
    // SAFETY: nobody else touches the span until its notice.
    let retrieve_span = || unsafe { Submission::retrieve_span("key-200", span) };
    let ((mut late, stopped), mut during) = lookups_during(&host, "key-0", || {
        let stopped = Instant::now();
        // One: its span is not to be had while the call may write it.
        let op = retrieve_span().user_data(200).timeout(Some(DEADLINE));
        let start = Instant::now();
        pair.submit(op).unwrap();
        pair.wait(1, Some(RESTART)).unwrap();
        let mut late = vec![start.elapsed()];
        let end = pair.poll().unwrap();
        assert_eq!(
            (end.user_data, end.result, end.more),
            (200, Err(IN_PROGRESS), true)
        );
        let held = engine.quarantined();
        assert_eq!((held.len(), engine.stats().engine.quarantined), (1, 1));
        assert_eq!(
            (held[0].op, &*held[0].key),
            (OpKind::Retrieve, &b"key-200"[..])
        );
        assert_eq!(held[0].ended_as, IN_PROGRESS);
        let addr = host.region.base().addr().get() + span.offset;
        assert_eq!((held[0].addr, held[0].len), (Some(addr), BYTES));
        let refused = pair.submit(retrieve_span()).unwrap_err();
        let quarantined = |op| SubmitError::Quarantined {
            op,
            addr,
            len: BYTES,
        };
        assert_eq!(refused.reason, quarantined(OpKind::Retrieve));
        // SAFETY: as above; it is refused.
        let store_span = unsafe { Submission::store_span("other", span) };
        let refused = pair.submit(store_span).unwrap_err();
        assert_eq!(refused.reason, quarantined(OpKind::Store));

        // 200 more, before the first of them are late.
        let mut starts = Vec::new();
        for part in keys[..200].chunks(40) {
            let mut batch = pair.batch();
            for key in part {
                let id = starts.len() as u64;
                let op = host.op(OpKind::Retrieve, key);
                let op = op.user_data(id).timeout(Some(DEADLINE));
                starts.push(Instant::now());
                batch.push(op).expect("room");
            }
            batch.publish();
            std::thread::sleep(ms(30));
        }
        let (mut in_progress, mut never_started) = (0, 0);
        while in_progress + never_started < 200 {
            pair.wait(1, Some(RESTART)).unwrap();
            for end in pair.completions() {
                match end.result {
                    Err(IN_PROGRESS) => {
                        late.push(starts[end.user_data as usize].elapsed());
                        in_progress += 1;
                        assert!(end.more && end.slot.is_none());
                    }
                    // The last workers were in calls already; and then the circuit opened.
                    Err(NEVER_STARTED) | Err(OpError::Unavailable) => {
                        never_started += 1;
                        assert!(!end.more && end.slot.is_some());
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        println!("{in_progress} in progress, {never_started} never started");
        // How many of them each call took is for the engine to know.
        assert!(in_progress >= 3, "all other workers are in calls");
        assert_eq!(engine.quarantined().len(), in_progress + 1);
        assert_eq!(host.slots.available(), SLOTS - in_progress);
        // Half of the workers hang, and all of them.
        let refused = loop {
            let start = Instant::now();
            match pair.submit(host.op(OpKind::Retrieve, "key-0")) {
                Err(refused) => {
                    println!("refused within {:?}", start.elapsed());
                    break refused.reason;
                }
                // Let in as a probe, for which there is no worker.
                Ok(_) => {
                    pair.wait(1, Some(RESTART)).unwrap();
                    assert_eq!(pair.poll().unwrap().result, Err(OpError::Unavailable));
                }
            }
        };
        let (op, why) = (OpKind::Retrieve, Unavailable::Overdue);
        assert_eq!(refused, SubmitError::Unavailable { op, why });
        let health = engine.health();
        println!("{}: {:?}", health.state, health.reasons);
        assert_eq!(health.state, HealthState::Degraded, "lookups work");
        std::thread::sleep(ms(500));
        (late, stopped)
    });
    println!("stopped for {:.2?}", stopped.elapsed());
    let ends = late.len();
    let (p50, p99) = (percentile(&mut late, 50), percentile(&mut late, 99));
    let (first, last) = (late[0], late[ends - 1]);
    println!("{ends} ends: first {first:.2?}, p50 {p50:.2?}, p99 {p99:.2?}, last {last:.2?}");
    // The engine counts a processor's ticks, whose rate it measures to some 100 in a million.
    assert!(first + ms(1) >= DEADLINE, "{first:?}");
    assert!(p99 < DEADLINE + SLACK, "{p99:?}");
    let lookups = [&mut before, &mut during].map(|times| {
        let (p50, p99) = (percentile(times, 50), percentile(times, 99));
        println!(
            "{} lookups: p50 {p50:.2?}, p99 {p99:.2?}, max {:.2?}",
            times.len(),
            times.last()
        );
        percentile(times, 90)
    });
    // Behind a retrieve one would wait for its deadline. A single one may wait for a core as long.
    assert!(lookups[1] < lookups[0] * 4 + ms(250), "{lookups:?}");

    mooncake.command("cont-node");
    let start = Instant::now();
    let mut released = 0;
    while engine.stats().engine.quarantined > 0 || pair.in_flight() > 0 {
        assert!(
            start.elapsed() < RESTART,
            "{:#?}",
            engine.quarantined().len()
        );
        let _ = pair.wait(1, Some(ms(20)));
        released += pair.completions().filter(|end| end.release).count();
    }
    println!(
        "{released} released {:.2?} after it went on",
        start.elapsed()
    );
    assert_eq!((pair.in_flight(), host.slots.available()), (0, SLOTS));
    assert_eq!(engine.quarantined(), []);
    host.recovers(&mut pair, "key-0");
    // The span is to be had again, and what is read has its bytes.
    let taken = pair.submit(retrieve_span());
    assert!(
        taken.is_ok(),
        "{:?}",
        taken.map_err(|refused| refused.reason)
    );
    pair.wait(1, Some(RESTART)).unwrap();
    assert_eq!(
        pair.poll().unwrap().result,
        Ok(Done::Retrieved(BYTES as u64))
    );
    // SAFETY: the op has ended, and the span is ours again.
    let bytes = unsafe {
        let first = host.region.base().as_ptr().add(span.offset);
        std::slice::from_raw_parts(first, BYTES)
    };
    assert_eq!(bytes, value("key-200"));
    host.assert_all_there(&keys);
}

/// A host thread that goes on submitting ops of all kinds while the master stands still.
fn master_stands_still(test: &str, config: EngineConfig) {
    let Some(mooncake) = Mooncake::up(test, &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let config = config
        .timeout_ms(OpKind::Lookup, 200)
        .timeout_ms(OpKind::Retrieve, 500)
        .timeout_ms(OpKind::Store, 500)
        .timeout_ms(OpKind::Delete, 300);
    let host = Host::start(config, mooncake.open());
    let engine = &host.engine;
    let mut pair = engine.pair(4096).unwrap();
    let keys: Vec<_> = (0..32).map(|i| format!("key-{i}")).collect();
    host.store_all(&keys);
    host.assert_all_there(&keys);
    host.recovers(&mut pair, "key-0");

    mooncake.command("stop-master");
    let start = Instant::now();
    let mut starts: Vec<(OpKind, Instant)> = Vec::new();
    // By kind: how many ended so, and how late the latest was; of the last second: refused, or answered without a call.
    let (mut submits, mut over, mut slept) = (Vec::new(), [Duration::ZERO; 4], 0);
    let (mut timed_out, mut at_once, mut refused) = ([0; 4], [0; 4], [0; 4]);
    let mut answer_times: [Vec<Duration>; 4] = Default::default();
    let settled = ms(1500);
    while start.elapsed() < ms(3000) {
        for kind in OpKind::ALL {
            let key = match kind {
                OpKind::Store | OpKind::Delete => format!("new-{}", starts.len()),
                _ => keys[starts.len() % keys.len()].clone(),
            };
            // Made before the clock runs: filling a slot is the host's own work.
            if host.slots.available() < 2 {
                continue;
            }
            let op = host.op(kind, &key).user_data(starts.len() as u64);
            let (before, sleeps) = (Instant::now(), own_sleeps());
            let submitted = pair.submit(op);
            submits.push(before.elapsed());
            slept += own_sleeps() - sleeps;
            match submitted {
                Ok(_) => starts.push((kind, before)),
                Err(no) => {
                    let unavailable = matches!(no.reason, SubmitError::Unavailable { .. });
                    assert!(unavailable, "{}", no.reason);
                    refused[kind.index()] += 1;
                }
            }
        }
        let _ = pair.wait(1, Some(ms(2)));
        for end in pair.completions() {
            see(
                &end,
                &starts,
                &mut timed_out,
                &mut at_once,
                &mut over,
                |kind, took| {
                    if start.elapsed() > settled {
                        answer_times[kind.index()].push(took);
                    }
                },
            );
        }
    }
    // Each op meets its deadline.
    for kind in OpKind::ALL {
        let i = kind.index();
        let times = &mut answer_times[i];
        let answered = match times.is_empty() {
            true => "none".to_owned(),
            false => format!("{}, p50 {:.2?}", times.len(), percentile(times, 50)),
        };
        println!(
            "{kind}: {} timed out, at most {:.2?} late; {} answered as unavailable, {} refused; after {settled:?} ended: {answered}",
            timed_out[i], over[i], at_once[i], refused[i]
        );
        assert!(over[i] < SLACK, "{kind}: {:?} late", over[i]);
        assert!(timed_out[i] > 0, "{kind}: none was in a call");
        assert!(at_once[i] + refused[i] > 100, "{kind}: not at once");
        if !times.is_empty() {
            assert!(
                percentile(times, 50) < ms(150),
                "{kind}: {:?}",
                percentile(times, 50)
            );
        }
    }
    let (p99, longest) = (percentile(&mut submits, 99), submits[submits.len() - 1]);
    println!(
        "{} submits: p99 {p99:.2?}, longest {longest:.2?}; slept in {slept} of them",
        submits.len()
    );
    // The longest may have been one in which the thread was preempted. (Debug builds take a lock, of the spans in flight.)
    assert!(longest < SLACK, "{longest:?}");
    assert!(slept == 0 || cfg!(debug_assertions), "{slept} waited");
    let health = engine.health();
    println!("{}: {:?}", health.state, health.reasons);
    assert_eq!(health.state, HealthState::Down);
    assert!(engine.stats().engine.quarantined > 0);

    mooncake.command("cont-master");
    eventually(RESTART, "nothing in quarantine", || {
        pair.completions().for_each(drop);
        engine.stats().engine.quarantined == 0
    });
    eventually(RESTART, "nothing in flight", || {
        pair.completions().for_each(drop);
        pair.in_flight() == 0
    });
    assert_eq!(host.slots.available(), SLOTS);
    host.recovers(&mut pair, "key-0");
    host.assert_all_there(&keys);
    let counts = engine.stats().engine;
    assert_eq!((counts.accepted, counts.in_flight), (counts.completed, 0));
}

/// How often the calling thread gave its core away by itself.
fn own_sleeps() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to memory for one `rusage`.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    assert_eq!(done, 0);
    // SAFETY: the call above went well and filled it in.
    unsafe { usage.assume_init() }.ru_nvcsw
}

fn see(
    end: &Completion,
    starts: &[(OpKind, Instant)],
    timed_out: &mut [u32; 4],
    at_once: &mut [u32; 4],
    over: &mut [Duration; 4],
    answered: impl FnOnce(OpKind, Duration),
) {
    if end.release {
        return;
    }
    let (kind, start) = starts[end.user_data as usize];
    let took = start.elapsed();
    let time = match kind {
        OpKind::Lookup => ms(200),
        OpKind::Delete => ms(300),
        _ => ms(500),
    };
    over[kind.index()] = over[kind.index()].max(took.saturating_sub(time));
    match end.result {
        Err(IN_PROGRESS | NEVER_STARTED) => timed_out[kind.index()] += 1,
        Err(OpError::Unavailable) => at_once[kind.index()] += 1,
        other => panic!("{kind}: {other:?}"),
    }
    assert_eq!(end.more, end.result == Err(IN_PROGRESS));
    answered(kind, took);
}

#[test]
fn while_the_master_stands_still_a_shared_pool_meets_all_deadlines_and_then_answers_at_once() {
    master_stands_still("master", EngineConfig::default());
}

#[test]
fn while_the_master_stands_still_workers_of_each_kind_meet_all_deadlines_and_then_answer_at_once() {
    let each = |config: EngineConfig, op| config.dedicated(op, 2);
    let config = OpKind::ALL.into_iter().fold(EngineConfig::default(), each);
    master_stands_still("master-each", config);
}

/// 600 ops with a deadline are in flight when the master dies.
#[test]
fn a_master_that_is_killed_ends_600_ops_by_their_deadlines_and_no_ok_is_wrong() {
    let Some(mooncake) = Mooncake::up("killed", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let host = Host::start(EngineConfig::default(), mooncake.open());
    let engine = &host.engine;
    let mut pair = engine.pair(600).unwrap();
    let keys: Vec<_> = (0..200).map(|i| format!("key-{i}")).collect();
    host.store_all(&keys);
    let new: Vec<_> = (0..200).map(|i| format!("new-{i}")).collect();
    // In calls when it is killed, for it stands still before.
    mooncake.command("stop-master");
    let time = ms(1500);
    let start = Instant::now();
    let mut batch = pair.batch();
    for i in 0..200 {
        for (kind, key) in [
            (OpKind::Retrieve, &keys[i]),
            (OpKind::Store, &new[i]),
            (OpKind::Lookup, &keys[i]),
        ] {
            let op = host.op(kind, key).user_data(i as u64);
            batch.push(op.timeout(Some(time))).expect("room");
        }
    }
    batch.publish();
    std::thread::sleep(ms(200));
    mooncake.command("kill-master");
    let killed = start.elapsed();
    let mut seen = [[0; 200]; 4];
    let (mut ends, mut latest) = (0, Duration::ZERO);
    let mut tally = std::collections::BTreeMap::<String, usize>::new();
    while ends < 600 {
        pair.wait(1, Some(RESTART)).unwrap();
        for end in pair.completions().filter(|end| !end.release) {
            ends += 1;
            latest = latest.max(start.elapsed());
            seen[end.op.index()][end.user_data as usize] += 1;
            *tally
                .entry(format!("{} {:?}", end.op, end.result))
                .or_default() += 1;
            match (end.op, end.result) {
                (_, Err(_)) => {}
                (OpKind::Retrieve, Ok(_)) => {
                    let slot = end.slot.expect("it comes back");
                    assert_holds(slot, &value(&keys[end.user_data as usize]));
                }
                (OpKind::Lookup, Ok(done)) => assert_eq!(done, Done::Present),
                (_, Ok(done)) => assert_eq!(done, Done::Store(StoreOutcome::Accepted)),
            }
        }
    }
    println!("killed after {killed:.2?}, the last end after {latest:.2?}: {tally:?}");
    for kind in [OpKind::Retrieve, OpKind::Store, OpKind::Lookup] {
        assert_eq!(seen[kind.index()], [1; 200], "{kind}");
    }
    assert!(latest < time + SLACK, "{latest:?}");
    let health = engine.health();
    println!("{}: {:?}", health.state, health.reasons);
    assert_ne!(health.state, HealthState::Healthy);

    mooncake.command("start-master");
    eventually(RESTART, "all released", || {
        pair.completions().for_each(drop);
        pair.in_flight() == 0 && engine.stats().engine.quarantined == 0
    });
    eventually(RESTART, "stores work", || {
        let client = engine.client();
        let done = client
            .blocking()
            .store("after", slot_of(&host.slots, &value("after")));
        done.result.is_ok()
    });
    host.recovers(&mut pair, "after");
    host.store_all(&keys);
    host.assert_all_there(&keys);
}
