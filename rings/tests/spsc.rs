//! The SPSC ring against a plain model, under load, and where its guards are leaked or a value's drop panics.
#![cfg(not(loom))]

mod support;

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moonring_rings::spsc::{Consumer, Producer, ring};
use proptest::prelude::*;
use support::{Alive, Counted, within};

/// Both sides' steps in any order. Counts go beyond the capacity on purpose.
#[derive(Clone, Debug)]
enum Step {
    Stage,
    Publish,
    Push,
    Reserve { n: usize, fill: usize, commit: bool },
    Room,
    Close,
    Peek(usize),
    Pop,
    Take { n: usize, read: usize, stop: bool },
    Closed,
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..7usize;
    prop_oneof![
        4 => Just(Step::Stage),
        4 => Just(Step::Publish),
        4 => Just(Step::Push),
        4 => (n.clone(), n.clone(), any::<bool>())
            .prop_map(|(n, fill, commit)| Step::Reserve { n, fill, commit }),
        1 => Just(Step::Room),
        1 => (0..20u8).prop_map(|x| if x == 0 { Step::Close } else { Step::Closed }),
        2 => n.clone().prop_map(Step::Peek),
        4 => Just(Step::Pop),
        4 => (n.clone(), n, any::<bool>())
            .prop_map(|(n, read, stop)| Step::Take { n, read, stop }),
    ]
}

/// The same by two queues.
struct Model {
    capacity: usize,
    staged: VecDeque<u64>,
    published: VecDeque<u64>,
    closed: bool,
    total: usize,
}

impl Model {
    fn room(&self) -> usize {
        match self.closed {
            true => 0,
            false => self.capacity - self.staged.len() - self.published.len(),
        }
    }

    fn publish(&mut self) -> usize {
        let n = self.staged.len();
        self.published.append(&mut self.staged);
        self.total += n;
        n
    }
}

fn run(steps: Vec<Step>, capacity: usize, start: Option<usize>) -> Result<(), TestCaseError> {
    let alive = Alive::default();
    let (mut producer, consumer) = ring::<Counted>(capacity);
    let mut model = Model {
        capacity: producer.capacity(),
        staged: VecDeque::new(),
        published: VecDeque::new(),
        closed: false,
        total: 0,
    };
    prop_assert_eq!(model.capacity, capacity.max(1).next_power_of_two());
    for _ in 0..start.unwrap_or(0) {
        producer.push(alive.value(0)).unwrap();
        drop(consumer.try_lock().unwrap().pop());
        model.total += 1;
    }
    let mut next = 0;
    let mut number = || {
        next += 1;
        next
    };
    let mut taker = consumer.try_lock().unwrap();
    for step in steps {
        match step {
            Step::Stage => {
                let n = number();
                match producer.stage(alive.value(n)) {
                    Ok(()) => {
                        prop_assert!(model.room() > 0);
                        model.staged.push_back(n);
                    }
                    Err(full) => {
                        prop_assert_eq!((full.value.number, full.room), (n, 0));
                        prop_assert_eq!(model.room(), 0);
                    }
                }
            }
            Step::Publish => prop_assert_eq!(producer.publish(), model.publish()),
            Step::Push => {
                let n = number();
                let pushed = producer.push(alive.value(n)).is_ok();
                prop_assert_eq!(pushed, model.room() > 0);
                if pushed {
                    model.staged.push_back(n);
                    model.publish();
                }
            }
            Step::Reserve { n, fill, commit } => match producer.reserve(n) {
                Ok(mut held) => {
                    prop_assert!(model.room() >= n);
                    let filled: Vec<_> = (0..fill.min(n)).map(|_| number()).collect();
                    for &n in &filled {
                        prop_assert!(held.push(alive.value(n)).is_ok());
                    }
                    prop_assert_eq!(held.left(), n - filled.len());
                    if filled.len() == n {
                        let extra = number();
                        let back = held.push(alive.value(extra)).unwrap_err();
                        prop_assert_eq!(back.number, extra);
                    }
                    if commit {
                        let shown = held.commit();
                        model.staged.extend(filled);
                        prop_assert_eq!(shown, model.publish());
                    }
                }
                Err(full) => prop_assert!(full.room < n && full.room <= model.room()),
            },
            Step::Room => prop_assert_eq!(producer.room(), model.room()),
            Step::Close => {
                producer.close();
                model.publish();
                model.closed = true;
            }
            Step::Peek(i) => {
                let seen = taker.peek(i).map(|v| v.number);
                prop_assert_eq!(seen, model.published.get(i).copied());
            }
            Step::Pop => {
                let popped = taker.pop().map(|v| v.number);
                prop_assert_eq!(popped, model.published.pop_front());
            }
            Step::Take { n, read, stop } => {
                let mut chunk = taker.take(n);
                let n = n.min(model.published.len());
                prop_assert_eq!(chunk.len(), n);
                let read = read.min(n);
                for _ in 0..read {
                    let value = chunk.next().map(|v| v.number);
                    prop_assert_eq!(value, model.published.pop_front());
                }
                if stop {
                    chunk.stop();
                } else {
                    drop(chunk);
                    model.published.drain(..n - read);
                }
            }
            Step::Closed => {
                let closed = model.closed && model.published.is_empty();
                prop_assert_eq!(taker.is_closed(), closed);
            }
        }
        prop_assert_eq!(producer.published(), model.total);
        prop_assert_eq!(consumer.ready(), model.published.len());
        prop_assert_eq!(consumer.has_ready(), !model.published.is_empty());
        let inside = model.staged.len() + model.published.len();
        prop_assert_eq!(alive.count(), inside as i64);
    }
    drop(taker);
    drop((producer, consumer));
    prop_assert_eq!(alive.count(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(support::cases())]

    #[test]
    fn does_what_two_queues_do(
        steps in prop::collection::vec(step(), 0..200),
        capacity in 0..6usize,
        start in prop::option::of(0..5usize),
    ) {
        run(steps, capacity, start)?;
    }

    #[test]
    fn take_into_copies_what_take_takes(
        bursts in prop::collection::vec((0..9usize, 0..9usize), 1..50),
        capacity in 1..8usize,
    ) {
        let (mut producer, consumer) = ring::<u64>(capacity);
        let (mut model, mut out, mut next) = (VecDeque::new(), vec![7], 0);
        for (push, take) in bursts {
            for _ in 0..push {
                if producer.push(next).is_ok() {
                    model.push_back(next);
                    next += 1;
                }
            }
            let before = out.len();
            consumer.try_lock().unwrap().take_into(&mut out, take);
            let n = take.min(model.len());
            prop_assert!(out[before..].iter().copied().eq(model.drain(..n)));
        }
        prop_assert_eq!(out[0], 7);
    }
}

/// A burst of values with a random number to each, by whichever way the producer has.
fn produce(mut producer: Producer<Counted>, alive: &Alive, n: u64) {
    let mut next = 0;
    let mut way = 0;
    while next < n {
        way += 1;
        let burst = (way % 5 + 1).min(n - next);
        match way % 3 {
            0 => match producer.reserve(burst as usize) {
                Ok(mut held) => {
                    for number in next..next + burst {
                        held.push(alive.value(number)).unwrap();
                    }
                    held.commit();
                    next += burst;
                }
                Err(_) => std::thread::yield_now(),
            },
            1 => {
                for _ in 0..burst {
                    if producer.stage(alive.value(next)).is_err() {
                        break;
                    }
                    next += 1;
                }
                producer.publish();
            }
            _ => match producer.push(alive.value(next)) {
                Ok(()) => next += 1,
                Err(full) => {
                    assert_eq!(full.value.number, next);
                    std::thread::yield_now();
                }
            },
        }
    }
}

/// Takes by turns until the producer is gone and the ring empty. Returns the sum of what it took.
fn consume(consumer: Consumer<Counted>, last: &AtomicU64) -> u64 {
    let mut sum = 0;
    for way in 0.. {
        let Some(mut taker) = consumer.try_lock() else {
            std::thread::yield_now();
            continue;
        };
        if taker.is_closed() {
            break;
        }
        let mut took = 0;
        for value in taker.take(way % 4 + 1) {
            // The token hands over the order, too: each value is one more than the last that any consumer took.
            assert_eq!(last.fetch_add(1, Ordering::Relaxed), value.number);
            sum += value.number;
            took += 1;
        }
        drop(taker);
        if took == 0 {
            std::thread::yield_now();
        }
    }
    sum
}

#[test]
fn each_value_once_and_in_order_under_load() {
    const N: u64 = 40_000;
    within(Duration::from_secs(120), "spsc under load", || {
        for capacity in [1, 2, 8, 64] {
            let alive = Alive::default();
            let (producer, consumer) = ring(capacity);
            let last = AtomicU64::new(0);
            let sum: u64 = std::thread::scope(|s| {
                let (alive, last) = (&alive, &last);
                s.spawn(move || produce(producer, alive, N));
                let consumers =
                    [consumer.clone(), consumer].map(|c| s.spawn(move || consume(c, last)));
                consumers.into_iter().map(|c| c.join().unwrap()).sum()
            });
            assert_eq!(last.load(Ordering::Relaxed), N);
            assert_eq!(sum, N * (N - 1) / 2);
            assert_eq!(alive.count(), 0);
        }
    });
}

/// The places of a reservation lie on both sides of the ring's end.
#[test]
fn a_reservation_takes_what_an_iterator_has() {
    let (mut producer, consumer) = ring(4);
    let mut taker = consumer.try_lock().unwrap();
    for start in 0..4u64 {
        // With these it begins at another place each time.
        for value in [start, start + 1] {
            producer.push(value).unwrap();
            assert_eq!(taker.pop(), Some(value));
        }
        let mut more = producer.reserve(3).unwrap();
        let mut numbers = 10..;
        assert_eq!(more.fill_from(numbers.by_ref()), 3);
        assert_eq!((more.left(), more.fill_from([99])), (0, 0));
        assert_eq!(numbers.next(), Some(13), "none was taken in vain");
        assert_eq!(more.commit(), 3);
        assert!(taker.take(4).eq(10..13));
        let mut fewer = producer.reserve(4).unwrap();
        assert_eq!(fewer.fill_from([7]), 1);
        assert_eq!((fewer.push(8), fewer.left()), (Ok(()), 2));
        assert_eq!(fewer.commit(), 2);
        assert!(taker.take(4).eq([7, 8]));
    }
}

/// What was filled in until then is dropped with the reservation, once.
#[test]
fn an_iterator_that_panics_leaves_the_ring_as_it_was() {
    let (mut producer, consumer) = ring(4);
    let value = std::sync::Arc::new(());
    let values = (0..4).map(|i| match i {
        2 => panic!("on purpose"),
        _ => std::sync::Arc::clone(&value),
    });
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        producer.reserve(4).unwrap().fill_from(values);
    }));
    assert!(caught.is_err());
    assert_eq!(std::sync::Arc::strong_count(&value), 1);
    producer.push(value).unwrap();
    let mut taker = consumer.try_lock().unwrap();
    assert!(taker.pop().is_some() && taker.pop().is_none());
}

#[test]
fn nothing_goes_in_after_close() {
    let (mut producer, consumer) = ring(4);
    producer.push(1).unwrap();
    producer.stage(2).unwrap();
    producer.close();
    assert_eq!(producer.room(), 0);
    assert_eq!(producer.push(3).unwrap_err().value, 3);
    assert!(producer.reserve(1).is_err());
    let mut taker = consumer.try_lock().unwrap();
    assert!(!taker.is_closed());
    assert!(taker.take(9).eq([1, 2]));
    assert_eq!(producer.stage(4).unwrap_err().value, 4);
    assert!(taker.is_closed());
}

#[test]
fn the_token_is_one_threads() {
    let (_producer, consumer) = ring::<u8>(1);
    let other = consumer.clone();
    let taker = consumer.try_lock().unwrap();
    assert!(other.try_lock().is_none());
    drop(taker);
    assert!(other.try_lock().is_some());
}

#[test]
fn a_leaked_chunk_leaks_what_is_in_it_and_nothing_is_dropped_twice() {
    let alive = Alive::default();
    let (mut producer, consumer) = ring(4);
    for number in 0..4 {
        producer.push(alive.value(number)).unwrap();
    }
    let mut taker = consumer.try_lock().unwrap();
    let mut chunk = taker.take(2);
    let first = chunk.next().unwrap();
    mem::forget(chunk);
    assert_eq!(
        taker.peek(0).unwrap().number,
        2,
        "the chunk's values are gone"
    );
    drop(taker);
    assert_eq!(producer.room(), 2, "its places are not");
    assert_eq!(consumer.try_lock().unwrap().pop().unwrap().number, 2);
    assert_eq!(first.number, 0);
    drop((first, producer, consumer));
    assert_eq!(alive.count(), 1, "value 1 is leaked");
}

#[test]
fn a_leaked_taker_shuts_the_ring_and_nothing_is_dropped_twice() {
    let alive = Alive::default();
    let (mut producer, consumer) = ring(4);
    for number in 0..3 {
        producer.push(alive.value(number)).unwrap();
    }
    let mut taker = consumer.try_lock().unwrap();
    let mut chunk = taker.take(2);
    let first = chunk.next();
    mem::forget(chunk);
    mem::forget(taker);
    assert!(consumer.try_lock().is_none());
    drop((first, producer, consumer));
    assert_eq!(alive.count(), 2, "what was left is leaked");
}

#[test]
fn a_leaked_reservation_leaks_what_is_in_it_and_nothing_is_shown() {
    let alive = Alive::default();
    let (mut producer, consumer) = ring(2);
    let mut held = producer.reserve(2).unwrap();
    held.push(alive.value(1)).unwrap();
    mem::forget(held);
    producer.push(alive.value(2)).unwrap();
    assert_eq!(consumer.try_lock().unwrap().pop().unwrap().number, 2);
    drop((producer, consumer));
    assert_eq!(alive.count(), 1, "value 1 is leaked");
}

/// Dropping it panics if it is told to.
struct Grenade(bool, Counted);

impl Drop for Grenade {
    fn drop(&mut self) {
        assert!(!self.0, "value {}: as told by the test", self.1.number);
    }
}

#[test]
fn a_value_whose_drop_panics_takes_no_other_along_twice() {
    let alive = Alive::default();
    let (mut producer, consumer) = ring(4);
    for number in 0..4 {
        let value = Grenade(number == 0, alive.value(number));
        assert!(producer.push(value).is_ok());
    }
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut taker = consumer.try_lock().unwrap();
        drop(taker.take(2));
    }));
    assert!(panicked.is_err());
    assert_eq!(producer.room(), 2);
    let left: Vec<_> = consumer
        .try_lock()
        .unwrap()
        .take(4)
        .map(|v| v.1.number)
        .collect();
    assert_eq!(left, [2, 3]);
    drop((producer, consumer));
    assert_eq!(alive.count(), 1, "value 1 is leaked");
}
