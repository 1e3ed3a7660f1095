//! The SPSC ring: publication, full, wrap-around, reservations, the consumer token, and the end of either side.
//!
//! Values count their drops; loom's cells watch the places.

use loom::thread;
use moonring_rings::spsc::{Consumer, ring};

use crate::{Counted, Drops, model};

/// Takes up to `n` values, if the token is free.
fn take(consumer: &Consumer<Counted>, n: usize) -> Vec<usize> {
    match consumer.try_lock() {
        Some(mut taker) => taker.take(n).map(|v| v.number).collect(),
        None => Vec::new(),
    }
}

/// One burst of two, one single push, over the ring's end; the consumer looks in between.
#[test]
fn publishes_once_and_wraps() {
    model("spsc publishes_once_and_wraps", 1, None, || {
        let drops = Drops::new(5);
        let (mut producer, consumer) = ring(2);
        producer.push(drops.value(0)).unwrap();
        assert_eq!(take(&consumer, 1), [0]);
        let thread = {
            let drops = drops.clone();
            thread::spawn(move || {
                producer.stage(drops.value(1)).unwrap();
                producer.stage(drops.value(2)).unwrap();
                assert_eq!(producer.publish(), 2);
                for number in 3..5 {
                    let Err(full) = producer.push(drops.value(number)) else {
                        continue;
                    };
                    assert_eq!((full.value.number, full.room), (number, 0));
                    return number;
                }
                5
            })
        };
        let mut got = take(&consumer, 1);
        got.extend(take(&consumer, 2));
        let end = thread.join().unwrap();
        got.extend(take(&consumer, 4));
        assert!(
            got.iter().copied().eq(1..end),
            "{got:?}, pushed up to {end}"
        );
        assert_eq!(drops.of(0), 1);
        (1..end).for_each(|number| assert_eq!(drops.of(number), 1));
    });
}

/// A place that was popped is the producer's again, and not before.
#[test]
fn a_popped_place_is_used_again() {
    model("spsc a_popped_place_is_used_again", 1, None, || {
        let drops = Drops::new(2);
        let (mut producer, consumer) = ring(1);
        producer.push(drops.value(0)).unwrap();
        let value = drops.value(1);
        let thread = thread::spawn(move || producer.push(value).is_ok());
        let mut taker = consumer.try_lock().unwrap();
        assert_eq!(taker.pop().unwrap().number, 0);
        let second = taker.pop().map(|value| value.number);
        let pushed = thread.join().unwrap();
        let rest = second.or_else(|| taker.pop().map(|value| value.number));
        assert_eq!(rest, pushed.then_some(1));
        drop(taker);
        drops.assert_each_once();
    });
}

/// What is staged is not seen before it is published, and then all at once.
#[test]
fn staged_values_show_at_once() {
    model("spsc staged_values_show_at_once", 1, None, || {
        let drops = Drops::new(2);
        let (mut producer, consumer) = ring(2);
        let values = [drops.value(0), drops.value(1)];
        let thread = thread::spawn(move || {
            for value in values {
                producer.stage(value).unwrap();
            }
            producer.publish();
        });
        let ready = consumer.ready();
        assert!(ready == 0 || ready == 2);
        let mut taker = consumer.try_lock().unwrap();
        let available = taker.available();
        assert!(available == 2 || (available == 0 && ready == 0));
        let second = taker.peek(1).map(|v| v.number);
        assert!(second == Some(1) || (second.is_none() && available == 0));
        drop(taker);
        thread.join().unwrap();
        assert_eq!(take(&consumer, 3), [0, 1]);
        drops.assert_each_once();
    });
}

/// A reservation is held while the consumer empties the ring and waits at its end; filled, it spans the ring's end.
#[test]
fn a_reservation_held_over_a_lap() {
    model("spsc a_reservation_held_over_a_lap", 1, None, || {
        let drops = Drops::new(4);
        let (mut producer, consumer) = ring(2);
        producer.push(drops.value(0)).unwrap();
        let values = [1, 2, 3].map(|n| drops.value(n));
        let thread = thread::spawn(move || {
            let [one, two, three] = values;
            let mut held = producer.reserve(1).unwrap();
            held.push(one).unwrap();
            // Held until here: the consumer may have gone to the ring's end.
            assert_eq!(held.commit(), 1);
            match producer.reserve(2) {
                Ok(mut held) => {
                    held.push(two).unwrap();
                    held.push(three).unwrap();
                    assert_eq!(held.left(), 0);
                    assert_eq!(held.commit(), 2);
                    4
                }
                Err(full) => {
                    assert!(full.room < 2);
                    2
                }
            }
        });
        let mut got = take(&consumer, 2);
        got.extend(take(&consumer, 2));
        let end = thread.join().unwrap();
        got.extend(take(&consumer, 4));
        assert!(got.into_iter().eq(0..end));
        drops.assert_each_once();
    });
}

/// A reservation dropped half-filled shows nothing, drops what was in it, and its places can be used again.
#[test]
fn a_reservation_dropped_half_filled() {
    model("spsc a_reservation_dropped_half_filled", 1, None, || {
        let drops = Drops::new(4);
        let (mut producer, consumer) = ring(2);
        let values = [0, 1, 2, 3].map(|n| drops.value(n));
        let dropped = drops.clone();
        let thread = thread::spawn(move || {
            let [zero, one, two, three] = values;
            producer.stage(zero).unwrap();
            let mut held = producer.reserve(1).unwrap();
            held.push(one).unwrap();
            let back = held.push(two).unwrap_err();
            drop(held);
            assert_eq!((dropped.of(0), dropped.of(1), dropped.of(2)), (0, 1, 0));
            producer.push(back).unwrap();
            drop(producer.push(three));
        });
        let mut got = take(&consumer, 2);
        thread.join().unwrap();
        got.extend(take(&consumer, 4));
        assert!(got == [0, 2] || got == [0, 2, 3]);
        drops.assert_each_once();
    });
}

/// Two consumers share the token: each value goes to one of them, whoever has the token is alone, and what one leaves the other
/// finds.
#[test]
fn two_consumers_take_turns() {
    model("spsc two_consumers_take_turns", 2, Some(4), || {
        let drops = Drops::new(3);
        let (mut producer, consumer) = ring(2);
        let values = [0, 1, 2].map(|n| drops.value(n));
        let producer = thread::spawn(move || {
            values
                .into_iter()
                .map(|value| producer.push(value).is_ok())
                .collect::<Vec<_>>()
        });
        let other = {
            let consumer = consumer.clone();
            thread::spawn(move || take(&consumer, 1))
        };
        let mut got = take(&consumer, 2);
        assert!(got.is_sorted());
        got.extend(take(&consumer, 1));
        let pushed = producer.join().unwrap();
        got.extend(other.join().unwrap());
        got.extend(take(&consumer, 4));
        got.sort();
        let pushed: Vec<_> = (0..3).filter(|&n| pushed[n]).collect();
        assert_eq!(got, pushed);
        drops.assert_each_once();
    });
}

/// The next holder of the token goes on where the last one stopped, without any other order between the two; and a room that
/// the producer finds was really given back.
#[test]
fn the_token_hands_over_where_to_go_on() {
    model(
        "spsc the_token_hands_over_where_to_go_on",
        2,
        Some(4),
        || {
            let drops = Drops::new(4);
            let (mut producer, consumer) = ring(2);
            producer.push(drops.value(0)).unwrap();
            producer.push(drops.value(1)).unwrap();
            let others = [(); 2].map(|()| {
                let consumer = consumer.clone();
                thread::spawn(move || take(&consumer, 1))
            });
            let mut pushed = 2;
            for number in 2..4 {
                pushed += producer.push(drops.value(number)).is_ok() as usize;
            }
            let mut got: Vec<_> = others.into_iter().flat_map(|o| o.join().unwrap()).collect();
            assert!(!got.is_empty(), "one of the two had the token");
            got.extend(take(&consumer, 4));
            got.sort();
            assert_eq!(got.len(), pushed);
            assert!(got.windows(2).all(|w| w[0] < w[1]), "{got:?}");
            drops.assert_each_once();
        },
    );
}

/// Closed is seen only when everything published has been taken, also what was published just before.
#[test]
fn closed_is_seen_after_a_drain() {
    model("spsc closed_is_seen_after_a_drain", 1, None, || {
        let drops = Drops::new(2);
        let (mut producer, consumer) = ring(2);
        let values = [drops.value(0), drops.value(1)];
        let thread = thread::spawn(move || {
            let [zero, one] = values;
            producer.push(zero).unwrap();
            producer.stage(one).unwrap();
            // Dropping the producer publishes and closes.
        });
        let mut taker = consumer.try_lock().unwrap();
        let mut got = 0;
        for _ in 0..3 {
            if taker.is_closed() {
                assert_eq!(got, 2, "closed, and yet something was to come");
            }
            got += usize::from(taker.pop().is_some());
        }
        thread.join().unwrap();
        assert_eq!(taker.is_closed(), got == 2);
        got += taker.take(2).count();
        assert_eq!(got, 2);
        assert!(taker.is_closed());
        drop(taker);
        drops.assert_each_once();
    });
}

/// Producer and two consumers go in any order; who goes last drops what nobody took, once.
#[test]
fn the_last_to_go_drops_the_rest() {
    model("spsc the_last_to_go_drops_the_rest", 2, Some(4), || {
        let drops = Drops::new(3);
        let (mut producer, consumer) = ring(4);
        let values = [0, 1, 2].map(|n| drops.value(n));
        let producer = thread::spawn(move || {
            let [zero, one, two] = values;
            producer.push(zero).unwrap();
            producer.push(one).unwrap();
            producer.stage(two).unwrap();
        });
        let other = {
            let consumer = consumer.clone();
            thread::spawn(move || drop(take(&consumer, 1)))
        };
        let mut taker = consumer.try_lock();
        if let Some(taker) = &mut taker {
            // One iterated over, one left in the ring.
            let mut chunk = taker.take(2);
            drop(chunk.next());
            chunk.stop();
        }
        drop(taker);
        drop(consumer);
        producer.join().unwrap();
        other.join().unwrap();
        drops.assert_each_once();
    });
}
