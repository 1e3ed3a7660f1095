//! What the sim promises: faults where it was told, each counted, the spoiled keys named, the same again from the same
//! seed; waits that burn no core.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use moonring::store::memory::MemoryOptions;
use moonring::store::sim::{Fault, When};
use moonring::store::{MemoryStore, SimOptions, SimStore, Store, direct};
use moonring::{OpError, OpKind, StoreOutcome};

const LEN: usize = 64;
const POISON: u8 = 0xA5;

/// A sim over an empty memory store.
fn sim(options: SimOptions) -> (Arc<SimStore>, Arc<MemoryStore>) {
    let memory = Arc::new(MemoryStore::new(MemoryOptions::default()).unwrap());
    let sim = SimStore::new(memory.clone(), options).unwrap();
    (Arc::new(sim), memory)
}

fn name(i: usize) -> Vec<u8> {
    format!("key-{i}").into_bytes()
}

fn content(i: usize) -> Vec<u8> {
    (0..LEN).map(|at| (i * 7 + at) as u8).collect()
}

/// Puts `n` objects of equal length into a store.
fn fill(store: &dyn Store, n: usize) {
    for i in 0..n {
        let put = direct::put_from(store, &[(&name(i), &content(i))]).unwrap();
        assert_eq!(put[0], Ok(StoreOutcome::Stored));
    }
}

type Got = Vec<(Result<u64, OpError>, Vec<u8>)>;

/// Gets objects `0..n` in one call, into buffers of `len` bytes that were poisoned before.
fn get(store: &dyn Store, n: usize, len: usize) -> Got {
    let names: Vec<_> = (0..n).map(name).collect();
    let mut bufs = vec![vec![POISON; len]; n];
    let mut items: Vec<(&[u8], &mut [u8])> = Vec::new();
    for (name, buf) in names.iter().zip(&mut bufs) {
        items.push((name, buf));
    }
    let got = direct::get_into(store, &mut items).unwrap();
    got.into_iter().zip(bufs).collect()
}

/// Which of the objects that were reported as good have wrong bytes.
fn wrong(got: &Got) -> BTreeSet<Vec<u8>> {
    let wrong = |(i, (result, buf)): (usize, &(Result<u64, OpError>, Vec<u8>))| {
        let len = (*result).ok()? as usize;
        (buf[..len] != content(i)[..]).then(|| name(i))
    };
    got.iter().enumerate().filter_map(wrong).collect()
}

fn spoiled(sim: &SimStore) -> BTreeSet<Vec<u8>> {
    let report = sim.report();
    report
        .spoiled_keys()
        .into_iter()
        .map(<[u8]>::to_vec)
        .collect()
}

/// Fails loudly if `f` takes longer than a minute.
fn within_a_minute(f: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        f();
        let _ = done.send(());
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = wait.recv_timeout(Duration::from_secs(60)) {
        panic!("hung: no end after a minute");
    }
    thread.join().unwrap();
}

#[test]
fn by_default_nothing_is_changed_and_calls_are_counted() {
    let (sim, memory) = sim(SimOptions::default());
    fill(&*sim, 4);
    for _ in 0..3 {
        assert!(wrong(&get(&*sim, 4, LEN)).is_empty());
    }
    direct::exists(&*sim, &[b"key-0"]).unwrap();
    direct::remove(&*sim, &[b"key-0"], true).unwrap();
    let report = sim.report();
    assert_eq!(report.calls, [1, 3, 4, 1]);
    assert_eq!((report.total(), report.byte_faults.len()), (0, 0));
    assert_eq!(memory.objects(), 3);
    assert_eq!(sim.name(), "sim");
    assert_eq!(sim.capabilities(), memory.capabilities());
}

#[test]
fn a_flip_changes_one_byte_of_one_object_and_names_it() {
    let (sim, memory) = sim(SimOptions {
        seed: 1,
        flips: When::calls_of(OpKind::Retrieve, [2, 4]),
        ..SimOptions::default()
    });
    fill(&*memory, 8);
    for call in 1..=5u64 {
        // Buffers longer than the objects: only what was retrieved is flipped.
        let got = get(&*sim, 8, LEN * 3);
        let wrong = wrong(&got);
        assert_eq!(wrong.len(), usize::from(call == 2 || call == 4));
        if !wrong.is_empty() {
            let fault = sim.report().byte_faults.pop().unwrap();
            assert_eq!((fault.fault, fault.retrieve), (Fault::Flipped, call));
            assert_eq!(wrong, fault.keys.into_iter().collect());
            let i = (0..8).find(|i| wrong.contains(&name(*i))).unwrap();
            let bytes = got[i].1.iter().zip(content(i));
            let differ: Vec<_> = bytes.enumerate().filter(|(_, (a, b))| **a != *b).collect();
            assert_eq!(differ.len(), 1);
            assert_eq!(Some(differ[0].0), fault.offset);
        }
        assert!(got.iter().all(|g| g.1[LEN..] == [POISON; 2 * LEN]));
    }
    assert_eq!(sim.report().count(Fault::Flipped), 2);
}

#[test]
fn an_unwritten_buffer_is_as_before_and_reported_as_good() {
    let (sim, memory) = sim(SimOptions {
        unwritten: When::calls([2]),
        ..SimOptions::default()
    });
    fill(&*memory, 5);
    assert!(wrong(&get(&*sim, 5, LEN)).is_empty());
    let got = get(&*sim, 5, LEN);
    assert!(got.iter().all(|g| g.0 == Ok(LEN as u64)));
    let poisoned: Vec<_> = (0..5).filter(|i| got[*i].1 == [POISON; LEN]).collect();
    assert_eq!(poisoned.len(), 1);
    assert_eq!(wrong(&got), BTreeSet::from([name(poisoned[0])]));
    assert_eq!(spoiled(&sim), wrong(&got));
    assert!(wrong(&get(&*sim, 5, LEN)).is_empty());
    assert_eq!(sim.report().count(Fault::Unwritten), 1);
}

#[test]
fn a_swap_exchanges_two_objects_whole() {
    let (sim, memory) = sim(SimOptions {
        swaps: When::calls([1]),
        ..SimOptions::default()
    });
    fill(&*memory, 6);
    let got = get(&*sim, 6, LEN);
    let wrong = wrong(&got);
    assert_eq!(wrong.len(), 2);
    assert_eq!(spoiled(&sim), wrong);
    let pair: Vec<_> = (0..6).filter(|i| wrong.contains(&name(*i))).collect();
    assert_eq!(got[pair[0]].1, content(pair[1]));
    assert_eq!(got[pair[1]].1, content(pair[0]));
    assert_eq!(sim.report().count(Fault::Swapped), 1);
}

#[test]
fn a_fault_that_finds_nothing_to_strike_is_not_counted() {
    let always = || When::rate(1.0);
    let (sim, memory) = sim(SimOptions {
        swaps: always(),
        ..SimOptions::default()
    });
    // One object; two of unequal lengths; two of equal bytes; none that is there.
    direct::put_from(
        &*memory,
        &[(b"a", b"same"), (b"b", b"same"), (b"c", b"other")],
    )
    .unwrap();
    let mut bufs = [[0; 8]; 3];
    let [a, b, c] = &mut bufs;
    direct::get_into(&*sim, &mut [(b"a", a)]).unwrap();
    direct::get_into(&*sim, &mut [(b"a", a), (b"c", c)]).unwrap();
    direct::get_into(&*sim, &mut [(b"a", a), (b"b", b)]).unwrap();
    get(&*sim, 8, LEN);
    assert_eq!(sim.report().total(), 0);
    assert_eq!(
        (&bufs[0][..4], &bufs[2][..5]),
        (&b"same"[..], &b"other"[..])
    );

    let (sim, memory) = self::sim(SimOptions {
        flips: always(),
        unwritten: always(),
        ..SimOptions::default()
    });
    // Not there, and too short: no retrieve goes well. Other kinds have no bytes to spoil.
    assert!(get(&*sim, 8, LEN).iter().all(|g| g.0.is_err()));
    fill(&*sim, 8);
    assert!(get(&*sim, 8, LEN - 1).iter().all(|g| g.0.is_err()));
    direct::exists(&*sim, &[b"key-0"]).unwrap();
    direct::remove(&*sim, &[b"key-0"], true).unwrap();
    assert_eq!((sim.report().total(), memory.objects()), (0, 7));
}

#[test]
fn all_byte_faults_in_one_call_strike_different_keys() {
    for seed in 0..50 {
        let (sim, memory) = sim(SimOptions {
            seed,
            flips: When::rate(1.0),
            unwritten: When::rate(1.0),
            swaps: When::rate(1.0),
            ..SimOptions::default()
        });
        // Four for four, then too few for all: a swap has come first, so one is left for the flip.
        for (n, struck) in [(4, 4), (3, 3), (2, 2), (1, 1)] {
            memory_fill_once(&memory, n);
            let before = sim.report().byte_faults.len();
            let got = get(&*sim, n, LEN);
            let faults = sim.report().byte_faults.split_off(before);
            let named: Vec<_> = faults.iter().flat_map(|f| f.keys.clone()).collect();
            assert_eq!(named.len(), struck, "seed {seed}, {n} keys: {faults:?}");
            assert_eq!(wrong(&got), named.into_iter().collect(), "seed {seed}");
        }
    }

    fn memory_fill_once(memory: &MemoryStore, n: usize) {
        for i in 0..n {
            direct::put_from(memory, &[(&name(i), &content(i))]).unwrap();
        }
    }
}

#[test]
fn exactly_the_spoiled_keys_are_wrong_over_many_calls() {
    let rate = || When::rate(0.2);
    let (sim, memory) = sim(SimOptions {
        seed: 99,
        flips: rate(),
        unwritten: rate(),
        swaps: rate(),
        key_errors: When::rate(0.1).only(OpKind::Retrieve),
        wrong_counts: When::rate(0.1),
        ..SimOptions::default()
    });
    fill(&*memory, 6);
    let mut struck = 0;
    for _ in 0..500 {
        let before = sim.report().byte_faults.len();
        let wrong = wrong(&get(&*sim, 6, LEN));
        let faults = sim.report().byte_faults.split_off(before);
        assert_eq!(wrong, faults.into_iter().flat_map(|f| f.keys).collect());
        struck += wrong.len();
    }
    let report = sim.report();
    assert!(struck > 200, "{struck}");
    for fault in [Fault::Flipped, Fault::Unwritten, Fault::Swapped] {
        assert!(report.count(fault) > 50, "{fault:?}: {report:?}");
    }
}

#[test]
fn a_wrong_count_is_one_too_many_or_too_few_and_spoils_nothing() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        let (sim, memory) = sim(SimOptions {
            seed,
            wrong_counts: When::calls([2]),
            flips: When::calls([2]),
            ..SimOptions::default()
        });
        fill(&*memory, 3);
        let good = get(&*sim, 3, LEN);
        let bad = get(&*sim, 3, LEN);
        assert!(good.iter().all(|g| g.0 == Ok(LEN as u64)));
        assert!(bad.iter().all(|g| g.0 == Err(OpError::WrongResultCount)));
        assert_eq!(sim.report().count(Fault::WrongCount), 1);
        assert_eq!(sim.report().count(Fault::Flipped), 0);
        seen.insert(count_of_next(seed));
    }
    assert_eq!(seen, BTreeSet::from([2, 4]));

    /// What a call with a wrong count returns itself, of 3 keys.
    fn count_of_next(seed: u64) -> usize {
        struct Spy(SimStore, std::sync::Mutex<usize>);
        impl Store for Spy {
            fn name(&self) -> &str {
                "spy"
            }
            fn batch_exists(
                &self,
                batch: &mut moonring::store::LookupBatch<'_>,
            ) -> moonring::store::CallResult {
                let answer = self.0.batch_exists(batch)?;
                *self.1.lock().unwrap() = answer;
                Ok(answer)
            }
            fn batch_get_into(
                &self,
                batch: &mut moonring::store::RetrieveBatch<'_>,
            ) -> moonring::store::CallResult {
                self.0.batch_get_into(batch)
            }
            fn batch_put_from(
                &self,
                batch: &mut moonring::store::StoreBatch<'_>,
            ) -> moonring::store::CallResult {
                self.0.batch_put_from(batch)
            }
            fn batch_remove(
                &self,
                batch: &mut moonring::store::DeleteBatch<'_>,
            ) -> moonring::store::CallResult {
                self.0.batch_remove(batch)
            }
        }
        let options = SimOptions {
            seed,
            wrong_counts: When::rate(1.0),
            ..SimOptions::default()
        };
        let null = Arc::new(moonring::store::NullStore);
        let spy = Spy(SimStore::new(null, options).unwrap(), Default::default());
        direct::exists(&spy, &[b"a", b"b", b"c"]).unwrap();
        spy.1.into_inner().unwrap()
    }
}

#[test]
fn a_panic_says_where_it_comes_from_and_nothing_has_happened() {
    let (sim, memory) = sim(SimOptions {
        seed: 42,
        panics: When::calls([2]),
        ..SimOptions::default()
    });
    fill(&*sim, 1);
    let put = || direct::put_from(&*sim, &[(b"other", b"bytes")]);
    let why = catch_unwind(AssertUnwindSafe(put)).unwrap_err();
    let why = why.downcast_ref::<String>().unwrap();
    assert!(why.contains("call 2") && why.contains("seed 42"), "{why}");
    assert_eq!(memory.objects(), 1);
    assert_eq!(put().unwrap()[0], Ok(StoreOutcome::Stored));
    assert_eq!(sim.report().count(Fault::Panic), 1);
}

#[test]
fn a_call_error_is_every_keys_and_nothing_has_happened() {
    let (sim, memory) = sim(SimOptions {
        call_errors: When::calls([2]),
        call_error: OpError::RpcTimedOut,
        ..SimOptions::default()
    });
    fill(&*sim, 1);
    let put = || direct::put_from(&*sim, &[(b"x", b"bytes"), (b"y", b"bytes")]).unwrap();
    assert_eq!(put(), vec![Err(OpError::RpcTimedOut); 2]);
    assert_eq!(memory.objects(), 1);
    assert_eq!(put(), vec![Ok(StoreOutcome::Stored); 2]);
    assert_eq!(sim.report().count(Fault::CallError), 1);
}

#[test]
fn key_errors_are_each_keys_own_and_counted() {
    let (sim, memory) = sim(SimOptions {
        seed: 5,
        key_errors: When::rate(0.5).only(OpKind::Lookup),
        key_error: OpError::Busy,
        ..SimOptions::default()
    });
    fill(&*memory, 4);
    let names: Vec<_> = (0..8).map(name).collect();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let mut errors = 0;
    for _ in 0..500 {
        for (i, there) in direct::exists(&*sim, &keys)
            .unwrap()
            .into_iter()
            .enumerate()
        {
            match there {
                Ok(there) => assert_eq!(there, i < 4, "an error is never `no`"),
                Err(error) => {
                    assert_eq!(error, OpError::Busy);
                    errors += 1;
                }
            }
        }
    }
    assert!((1800..2200).contains(&errors), "{errors} of 4000");
    assert_eq!(sim.report().count(Fault::KeyError), errors);
    assert!(get(&*sim, 4, LEN).iter().all(|g| g.0.is_ok()));

    let (sim, memory) = self::sim(SimOptions {
        key_errors: When::calls([1]),
        ..SimOptions::default()
    });
    fill(&*memory, 4);
    let errors = |got: Got| got.iter().filter(|g| g.0.is_err()).count();
    assert_eq!(errors(get(&*sim, 4, LEN)), 1);
    assert_eq!(errors(get(&*sim, 4, LEN)), 0);
    assert_eq!(sim.report().count(Fault::KeyError), 1);
}

#[test]
fn a_key_error_of_a_store_has_happened_all_the_same() {
    let (sim, memory) = sim(SimOptions {
        key_errors: When::rate(1.0).only(OpKind::Store),
        ..SimOptions::default()
    });
    let put = direct::put_from(&*sim, &[(b"x", b"bytes")]).unwrap();
    assert_eq!(put, vec![Err(OpError::TransferFailed)]);
    assert_eq!(memory.objects(), 1);
}

#[test]
fn errors_of_the_wrapped_store_pass_through() {
    let (inner, _) = sim(SimOptions {
        call_errors: When::calls([1]),
        wrong_counts: When::calls([2]),
        ..SimOptions::default()
    });
    let outer = SimStore::new(
        inner,
        SimOptions {
            key_errors: When::rate(1.0),
            wrong_counts: When::calls([1, 2]),
            ..SimOptions::default()
        },
    )
    .unwrap();
    let exists = || direct::exists(&outer, &[b"a"]).unwrap()[0];
    assert_eq!(exists(), Err(OpError::RpcFailed));
    assert_eq!(exists(), Err(OpError::WrongResultCount));
    assert_eq!(outer.report().total(), 0);
    assert_eq!(exists(), Err(OpError::TransferFailed));
}

/// A fixed run of calls of all kinds; the report, and all that callers saw.
fn run_with(seed: u64) -> (moonring::store::sim::SimReport, Vec<String>) {
    let rate = || When::rate(0.15);
    let (sim, memory) = sim(SimOptions {
        seed,
        key_errors: rate(),
        call_errors: rate(),
        wrong_counts: rate(),
        flips: rate(),
        unwritten: rate(),
        swaps: rate(),
        panics: rate(),
        ..SimOptions::default()
    });
    fill(&*memory, 6);
    let mut saw = Vec::new();
    for i in 0..100 {
        let retrieve = || format!("{:?}", get(&*sim, 6, LEN));
        saw.push(catch_unwind(AssertUnwindSafe(retrieve)).unwrap_or("panic".into()));
        let key = format!("new-{i}");
        let store = || {
            format!(
                "{:?}",
                direct::put_from(&*sim, &[(key.as_bytes(), b"x")]).unwrap()
            )
        };
        saw.push(catch_unwind(AssertUnwindSafe(store)).unwrap_or("panic".into()));
    }
    (sim.report(), saw)
}

#[test]
fn the_same_seed_fails_again_in_the_same_way() {
    // Dozens of panics as told need no report; all others do.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.to_string().contains("as told") {
            report(info);
        }
    }));
    let (a, b, c) = (run_with(7), run_with(7), run_with(8));
    assert_eq!(a, b);
    assert_ne!(a.1, c.1);
    assert_eq!((a.0.seed, c.0.seed), (7, 8));
    for fault in Fault::ALL {
        assert!(a.0.count(fault) > 0, "{}: {:?}", fault.name(), a.0);
    }
}

#[test]
fn what_a_rate_strikes_does_not_depend_on_calls_of_other_kinds() {
    let struck = |lookups: usize| -> Vec<u64> {
        let (sim, memory) = sim(SimOptions {
            seed: 3,
            flips: When::rate(0.3),
            ..SimOptions::default()
        });
        fill(&*memory, 2);
        for _ in 0..50 {
            for _ in 0..lookups {
                direct::exists(&*sim, &[b"a"]).unwrap();
            }
            get(&*sim, 2, LEN);
        }
        let faults = sim.report().byte_faults;
        faults.into_iter().map(|fault| fault.retrieve).collect()
    };
    assert!(struck(0).len() > 5);
    assert_eq!(struck(0), struck(3));
}

#[test]
fn with_callers_at_the_same_time_counts_add_up() {
    within_a_minute(|| {
        let (sim, memory) = sim(SimOptions {
            key_errors: When::rate(0.1).only(OpKind::Retrieve),
            flips: When::rate(0.3),
            call_errors: When::rate(0.1),
            ..SimOptions::default()
        });
        fill(&*memory, 4);
        let sums: Vec<(usize, usize, usize)> = std::thread::scope(|scope| {
            let run = || {
                let mut sums = (0, 0, 0);
                for _ in 0..500 {
                    let got = get(&*sim, 4, LEN);
                    let of = |error| got.iter().filter(|g| g.0 == Err(error)).count();
                    sums.0 += of(OpError::RpcFailed) / 4;
                    sums.1 += of(OpError::TransferFailed);
                    sums.2 += wrong(&got).len();
                }
                sums
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let report = sim.report();
        let sum = |f: fn(&(usize, usize, usize)) -> usize| sums.iter().map(f).sum::<usize>() as u64;
        assert_eq!(report.calls_of(OpKind::Retrieve), 2000);
        assert_eq!(report.count(Fault::CallError), sum(|s| s.0));
        assert_eq!(report.count(Fault::KeyError), sum(|s| s.1));
        assert_eq!(report.count(Fault::Flipped), sum(|s| s.2));
        assert!(report.total() > 500, "{report:?}");
    });
}

/// Processor time of this thread.
fn cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec, which is ours.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn delays_add_up_per_call_key_and_byte_and_burn_no_core() {
    let (sim, memory) = sim(SimOptions {
        delay: Duration::from_millis(50),
        delay_ns_per_key: 10e6,
        delay_ns_per_byte: 0.5e6,
        ..SimOptions::default()
    });
    fill(&*memory, 4);
    let (began, burnt) = (Instant::now(), cpu());
    get(&*sim, 4, LEN);
    // 50 ms, 4 keys of 10 ms, 256 bytes of 0.5 ms.
    assert!(
        began.elapsed() >= Duration::from_millis(218),
        "{:?}",
        began.elapsed()
    );
    let began = Instant::now();
    direct::exists(&*sim, &[b"a", b"b"]).unwrap();
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(70), "{took:?}");
    assert!(cpu() - burnt < Duration::from_millis(30), "it burnt a core");
}

/// Delays of calls side by side go by together, what they put into the pipe goes by one after the other.
#[test]
fn the_pipe_is_shared_by_all_calls_and_delays_are_not() {
    let at_once = |options: SimOptions| {
        let (sim, memory) = sim(options);
        fill(&*memory, 4);
        let (began, burnt) = (Instant::now(), cpu());
        std::thread::scope(|scope| {
            let calls: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| get(&*sim, 4, LEN).len()))
                .collect();
            calls.into_iter().for_each(|call| {
                call.join().unwrap();
            });
        });
        assert!(cpu() - burnt < Duration::from_millis(30), "it burnt a core");
        began.elapsed()
    };
    // 10 ms, 4 keys of 5 ms, 256 bytes of 0.1 ms: 55.6 ms a call.
    let piped = at_once(SimOptions {
        pipe: Duration::from_millis(10),
        pipe_ns_per_key: 5e6,
        pipe_ns_per_byte: 0.1e6,
        ..SimOptions::default()
    });
    assert!(piped >= Duration::from_millis(222), "{piped:?}");
    let (sim, _) = sim(SimOptions {
        pipe: Duration::from_millis(40),
        delay: Duration::from_millis(60),
        ..SimOptions::default()
    });
    // Twice 40 ms one after the other, and 60 ms side by side: 140 ms, where the machine has time for us. A pipe that nobody
    // needed for a while has stored nothing up.
    let took = || {
        std::thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| direct::exists(&*sim, &[b"a"]));
            scope.spawn(|| direct::exists(&*sim, &[b"b"]));
        });
        began.elapsed()
    };
    let mut all: Vec<_> = (0..5).map(|_| took()).collect();
    let in_time = Duration::from_millis(190);
    while all.len() < 25 && all.iter().all(|&took| took >= in_time) {
        all.push(took());
    }
    let shortest = *all.iter().min().unwrap();
    assert!(shortest >= Duration::from_millis(140), "{shortest:?}");
    assert!(shortest < in_time, "{shortest:?}");
}

#[test]
fn a_gate_holds_calls_of_its_kinds_until_they_are_let_through() {
    within_a_minute(|| {
        let (sim, memory) = sim(SimOptions::default());
        fill(&*memory, 1);
        let gate = sim.gate().clone();
        let long = Duration::from_secs(30);
        let closed = gate.close(&[OpKind::Retrieve]);
        let (done, ends) = mpsc::channel();
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let (sim, done) = (sim.clone(), done.clone());
                std::thread::spawn(move || {
                    let burnt = cpu();
                    let got = get(&*sim, 1, LEN);
                    done.send((got, cpu() - burnt)).unwrap();
                })
            })
            .collect();
        assert!(gate.wait_inside(OpKind::Retrieve, 3, long));
        assert_eq!(gate.inside(OpKind::Retrieve), 3);
        assert!(!gate.wait_inside(OpKind::Retrieve, 4, Duration::from_millis(50)));
        assert!(ends.try_recv().is_err(), "nobody has passed");
        // Other kinds pass.
        direct::exists(&*sim, &[b"key-0"]).unwrap();

        closed.admit(1);
        assert!(wrong(&ends.recv_timeout(long).unwrap().0).is_empty());
        assert!(
            ends.recv_timeout(Duration::from_millis(50)).is_err(),
            "one was let through"
        );
        assert_eq!(gate.inside(OpKind::Retrieve), 2);

        drop(closed);
        for _ in 0..2 {
            let (got, burnt) = ends.recv_timeout(long).unwrap();
            assert!(wrong(&got).is_empty());
            assert!(
                burnt < Duration::from_millis(30),
                "it burnt a core: {burnt:?}"
            );
        }
        assert_eq!(gate.inside(OpKind::Retrieve), 0);
        for caller in callers {
            caller.join().unwrap();
        }

        // Two that keep it closed; one admitted before it comes.
        let closed = gate.close(&[OpKind::Retrieve, OpKind::Retrieve]);
        let second = gate.close(&[OpKind::Retrieve]);
        drop(closed);
        second.admit(1);
        get(&*sim, 1, LEN);
        let caller = {
            let sim = sim.clone();
            std::thread::spawn(move || get(&*sim, 1, LEN))
        };
        assert!(gate.wait_inside(OpKind::Retrieve, 1, long));
        drop(second);
        caller.join().unwrap();
        get(&*sim, 1, LEN);
    });
}

#[test]
fn who_waits_when_a_gate_opens_passes_also_if_it_closes_again_at_once() {
    within_a_minute(|| {
        let (sim, _) = sim(SimOptions::default());
        let gate = sim.gate();
        let lookup = || direct::exists(&*sim, &[b"a"]).unwrap();
        for _ in 0..300 {
            std::thread::scope(|scope| {
                let closed = gate.close(&[OpKind::Lookup]);
                let caller = scope.spawn(lookup);
                assert!(gate.wait_inside(OpKind::Lookup, 1, Duration::from_secs(30)));
                drop(closed);
                let _closed = gate.close(&[OpKind::Lookup]);
                caller.join().unwrap();
            });
        }
    });
}

#[test]
fn what_a_gate_admits_ends_when_it_opens() {
    within_a_minute(|| {
        let (sim, _) = sim(SimOptions::default());
        let gate = sim.gate();
        let closed = gate.close(&[OpKind::Lookup]);
        closed.admit(5);
        drop(closed);
        let closed = gate.close(&[OpKind::Lookup]);
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| direct::exists(&*sim, &[b"a"]).unwrap());
            let long = Duration::from_secs(30);
            assert!(gate.wait_inside(OpKind::Lookup, 1, long));
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(gate.inside(OpKind::Lookup), 1, "it has passed");
            drop(closed);
            caller.join().unwrap();
        });
    });
}

#[test]
fn registrations_fail_where_they_are_told_to_and_all_are_logged() {
    let (sim, memory) = sim(SimOptions {
        fail_register_at: Some(3),
        fail_unregister_at: Some(1),
        needs_registration: true,
        max_registration: Some(16),
        ..SimOptions::default()
    });
    let can = sim.capabilities();
    assert!(can.needs_registration && can.tells_stored && can.leases);
    assert_eq!(can.max_registration, Some(16));
    let mut bytes = [0; 64];
    let base = |i: usize, bytes: &mut [u8]| NonNull::new(bytes[i..].as_mut_ptr()).unwrap();
    // SAFETY: the memory outlives the registrations' use.
    let register = |base, len| unsafe { sim.register(base, len) };
    // SAFETY: no call uses the memory.
    let unregister = |base, len| unsafe { sim.unregister(base, len) };
    register(base(0, &mut bytes), 16).unwrap();
    register(base(16, &mut bytes), 16).unwrap();
    let why = register(base(32, &mut bytes), 16).unwrap_err().reason;
    assert!(why.contains("registration 3"), "{why}");
    let why = register(base(32, &mut bytes), 17).unwrap_err().reason;
    assert!(why.contains("max_registration"), "{why}");
    assert_eq!(memory.registrations(), 2);
    let why = unregister(base(16, &mut bytes), 16).unwrap_err().reason;
    assert!(why.contains("unregistration 1"), "{why}");
    unregister(base(0, &mut bytes), 16).unwrap();
    assert_eq!(memory.registrations(), 1);
    let at = bytes.as_ptr().addr();
    let log = sim.register_log();
    let log: Vec<_> = log
        .iter()
        .map(|c| (c.register, c.base - at, c.len, c.ok))
        .collect();
    assert_eq!(
        log,
        [
            (true, 0, 16, true),
            (true, 16, 16, true),
            (true, 32, 16, false),
            (true, 32, 17, false),
            (false, 16, 16, false),
            (false, 0, 16, true),
        ]
    );
}

#[test]
fn options_that_make_no_sense_are_refused_by_name() {
    type Set = fn(&mut SimOptions);
    let cases: &[(&str, Set)] = &[
        ("delay_ns_per_key", |o| o.delay_ns_per_key = f64::NAN),
        ("delay_ns_per_key", |o| o.delay_ns_per_key = -1.0),
        ("delay_ns_per_byte", |o| o.delay_ns_per_byte = f64::INFINITY),
        ("pipe_ns_per_key", |o| o.pipe_ns_per_key = -0.5),
        ("pipe_ns_per_byte", |o| o.pipe_ns_per_byte = f64::NAN),
        ("key_errors.rate", |o| o.key_errors.rate = 1.01),
        ("call_errors.rate", |o| o.call_errors.rate = -0.01),
        ("wrong_counts.rate", |o| o.wrong_counts.rate = f64::NAN),
        ("flips.calls", |o| o.flips.calls = vec![1, 0]),
        ("unwritten.kind_calls", |o| o.unwritten.kind_calls = vec![0]),
        ("swaps.only", |o| o.swaps.only = Some(OpKind::Store)),
        ("flips.only", |o| o.flips.only = Some(OpKind::Lookup)),
        ("panics.rate", |o| o.panics.rate = f64::INFINITY),
        ("max_registration", |o| o.max_registration = Some(0)),
        ("fail_register_at", |o| o.fail_register_at = Some(0)),
        ("fail_unregister_at", |o| o.fail_unregister_at = Some(0)),
    ];
    for (field, set) in cases {
        let mut options = SimOptions::default();
        set(&mut options);
        let null = Arc::new(moonring::store::NullStore);
        let error = SimStore::new(null, options).unwrap_err();
        assert_eq!(error.field, *field);
    }
}
