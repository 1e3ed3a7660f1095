//! The MPMC ring: claims of several places, wrap-around, races between consumers, gaps, and the end.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use moonring_rings::mpmc::Mpmc;
use moonring_rings::{Full, PushError};

use crate::{model, one_threads};

/// Takes at most `max` words once.
fn take(ring: &Mpmc, max: usize) -> Vec<u64> {
    let mut out = Vec::with_capacity(max);
    let n = ring.take_while(&mut out, |i, _| i < max);
    assert_eq!(n, out.len());
    out
}

/// What is left when all threads are gone, by single pops.
fn rest(ring: &Mpmc) -> Vec<u64> {
    std::iter::from_fn(|| ring.pop()).collect()
}

fn sorted(mut words: Vec<u64>) -> Vec<u64> {
    words.sort();
    words
}

/// Two producers push two words each, all at once: their words lie together and in order, and a consumer that comes in between
/// finds a prefix of them, never a hole.
#[test]
fn two_claims_of_two() {
    model("mpmc two_claims_of_two", 2, None, || {
        let ring = Arc::new(Mpmc::new(4));
        let producers = [10, 20].map(|base| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.push_all(&[base, base + 1]).unwrap())
        });
        let mut got = take(&ring, 3);
        for producer in producers {
            producer.join().unwrap();
        }
        got.extend(rest(&ring));
        assert!(
            got == [10, 11, 20, 21] || got == [20, 21, 10, 11],
            "{got:?}"
        );
    });
}

/// One place is left for two producers, of which one wants two: all or none, and the room in the answer is true.
#[test]
fn all_or_none_when_nearly_full() {
    model("mpmc all_or_none_when_nearly_full", 2, None, || {
        let ring = Arc::new(Mpmc::new(2));
        ring.push(1).unwrap();
        let two = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.push_all(&[20, 21]))
        };
        let one = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.push(30))
        };
        let mut got: Vec<_> = ring.pop().into_iter().collect();
        let (two, one) = (two.join().unwrap(), one.join().unwrap());
        got.extend(rest(&ring));
        let mut expected = vec![1];
        match two {
            Ok(()) => expected.extend([20, 21]),
            Err(PushError::Full(Full { room, .. })) => assert!(room < 2),
            Err(PushError::Closed(())) => panic!("nobody closes"),
        }
        match one {
            Ok(()) => expected.push(30),
            Err(full) => assert_eq!(full, PushError::Full(Full { value: 30, room: 0 })),
        }
        assert!(expected.len() > 1, "one of the two must go well");
        assert_eq!(sorted(got), expected);
    });
}

/// One thread passes two laps of a ring of one place by while another takes. The lap bit alone can't tell a word from
/// that of two laps ago: that no consumer takes the old one follows from how `head` is read.
fn two_laps(name: &str, pop: fn(&Mpmc) -> Vec<u64>) {
    model(name, 1, None, move || {
        let ring = Arc::new(Mpmc::new(1));
        ring.push(0).unwrap();
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || pop(&ring))
        };
        let mut got = Vec::new();
        let mut pushed = 1;
        for _ in 0..2 {
            got.extend(pop(&ring));
            pushed += ring.push(pushed).is_ok() as u64;
        }
        got.extend(other.join().unwrap());
        got.extend(rest(&ring));
        assert_eq!(sorted(got), (0..pushed).collect::<Vec<_>>());
    });
}

#[test]
fn a_word_of_two_laps_ago_is_not_popped() {
    two_laps("mpmc a_word_of_two_laps_ago_is_not_popped", |ring| {
        ring.pop().into_iter().collect()
    });
}

#[test]
fn a_word_of_two_laps_ago_is_not_taken() {
    two_laps("mpmc a_word_of_two_laps_ago_is_not_taken", |ring| {
        take(ring, 1)
    });
}

/// One thread takes a word and pushes another, so that there is always one; another thread must not find the ring empty,
/// even where it begins at an old `head`.
fn never_empty(name: &str, pop: fn(&Mpmc) -> Vec<u64>) {
    model(name, 1, None, move || {
        let ring = Arc::new(Mpmc::new(2));
        ring.push_all(&[0, 1]).unwrap();
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || pop(&ring))
        };
        let mut got = vec![ring.pop().unwrap()];
        ring.push(2).unwrap();
        let theirs = other.join().unwrap();
        assert!(!theirs.is_empty(), "there was always a word");
        got.extend(theirs);
        got.extend(rest(&ring));
        assert_eq!(sorted(got), [0, 1, 2]);
    });
}

#[test]
fn never_empty_is_never_found_empty_by_pop() {
    never_empty("mpmc never_empty_is_never_found_empty_by_pop", |ring| {
        ring.pop().into_iter().collect()
    });
}

#[test]
fn never_empty_is_never_found_empty_by_take() {
    never_empty("mpmc never_empty_is_never_found_empty_by_take", |ring| {
        take(ring, 1)
    });
}

/// Two consumers want all of a full ring while a producer fills it anew: who loses the race takes what is there then.
#[test]
fn a_consumer_that_loses_the_race() {
    model("mpmc a_consumer_that_loses_the_race", 2, Some(4), || {
        let ring = Arc::new(Mpmc::new(2));
        ring.push_all(&[0, 1]).unwrap();
        let consumer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || take(&ring, 2))
        };
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || (2..4).filter(|&w| ring.push(w).is_ok()).collect::<Vec<_>>())
        };
        let mut got = take(&ring, 2);
        assert!(got.is_sorted(), "one consumer sees the ring's order");
        let theirs = consumer.join().unwrap();
        assert!(theirs.is_sorted());
        got.extend(theirs);
        let mut pushed = vec![0, 1];
        pushed.extend(producer.join().unwrap());
        got.extend(rest(&ring));
        assert_eq!(sorted(got), pushed);
    });
}

/// A word brings along what was written before it was pushed; and its place is pushed over only after it was copied out.
#[test]
fn a_word_brings_along_what_it_refers_to() {
    let name = "mpmc a_word_brings_along_what_it_refers_to";
    model(name, 2, Some(4), || {
        let shared = Arc::new((Mpmc::new(1), [0, 1].map(UnsafeCell::new)));
        let producers = [0, 1].map(|i| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (ring, cells) = &*shared;
                // SAFETY: the cell is this thread's until the word is taken.
                cells[i as usize].with_mut(|c| unsafe { *c = 7 });
                ring.push(i).is_ok()
            })
        });
        let look = |word: u64| {
            // SAFETY: the word was taken, so the cell is ours.
            shared.1[word as usize].with(|c| assert_eq!(unsafe { *c }, 7));
            word
        };
        let mut got: Vec<_> = take(&shared.0, 1).into_iter().map(look).collect();
        let ready = shared.0.has_ready();
        let pushed = producers.map(|p| p.join().unwrap());
        got.extend(rest(&shared.0).into_iter().map(look));
        assert_eq!(got.len(), pushed.into_iter().filter(|&ok| ok).count());
        assert!(!ready || !got.is_empty(), "what is ready can be taken");
    });
}

/// A producer may stop between its claim and its publication: the words behind wait for it, and are not lost. (With two
/// producers and no joins before the look, every such stop is among the interleavings.)
#[test]
fn a_gap_hides_only_what_is_behind_it() {
    model(
        "mpmc a_gap_hides_only_what_is_behind_it",
        2,
        Some(4),
        || {
            let ring = Arc::new(Mpmc::new(4));
            ring.push(0).unwrap();
            let producers = [1, 2].map(|word| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || ring.push(word).unwrap())
            });
            let first = take(&ring, 4);
            assert_eq!(first[0], 0, "what lies before the gap is there");
            let second = take(&ring, 4);
            for producer in producers {
                producer.join().unwrap();
            }
            let mut all = first;
            all.extend(second);
            all.extend(rest(&ring));
            assert_eq!(all.len(), 3);
            assert_eq!(sorted(all), [0, 1, 2]);
        },
    );
}

/// Close races with pushes and with a consumer: what was claimed before is taken, nothing comes after, and drained means
/// that nothing will ever come.
#[test]
fn close_against_push() {
    model("mpmc close_against_push", 2, None, || {
        let ring = Arc::new(Mpmc::new(2));
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let first = ring.push(1);
                let second = ring.push(2);
                if first == Err(PushError::Closed(1)) {
                    assert_eq!(second, Err(PushError::Closed(2)));
                }
                first.is_ok() as usize + second.is_ok() as usize
            })
        };
        let closer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.close();
                assert_eq!(ring.push(3), Err(PushError::Closed(3)));
            })
        };
        let mut got: Vec<_> = ring.pop().into_iter().collect();
        let drained = ring.is_drained();
        let late = ring.pop();
        assert!(!drained || late.is_none(), "drained, and yet a word came");
        got.extend(late);
        let pushed = producer.join().unwrap();
        closer.join().unwrap();
        assert!(
            !drained || got.len() == pushed,
            "drained, and yet a push went well"
        );
        got.extend(rest(&ring));
        assert_eq!(got, (1..=pushed as u64).collect::<Vec<_>>());
        assert!(ring.is_drained());
    });
}

/// A ring as a pool: a word is one thread's at a time, and brings along what its last holder did.
#[test]
fn a_word_is_one_threads() {
    let new = || {
        let pool = Mpmc::new(2);
        pool.push_all(&[0, 1]).unwrap();
        pool
    };
    one_threads(
        "mpmc a_word_is_one_threads",
        new,
        Mpmc::pop,
        |pool, word| {
            pool.push(word).unwrap();
        },
    );
}
