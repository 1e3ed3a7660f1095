//! The pace against stores of which the best limit is known, in a time that is only counted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;

/// In ns, as the time of all tests here.
const RULES: Rules = Rules {
    window: 10_000_000,
    patience: 20_000_000,
};
const SECOND: u64 = 1_000_000_000;

/// What calls cost.
#[derive(Clone, Copy, Debug)]
enum Cost {
    /// One after the other, whoever makes them.
    Queue { call: u64, key: u64 },
    /// Each for itself.
    Apart { call: u64, key: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A producer sends so many ops again.
    Publish {
        producer: usize,
        ops: usize,
    },
    CallEnds(usize),
}

struct Call {
    begun: Begun,
    since: u64,
    left: bool,
    /// Of each producer.
    ops: Vec<(usize, usize)>,
    len: usize,
}

/// A lane, its workers, and producers that send again what was answered.
struct Sim {
    pace: Pace,
    cost: Cost,
    workers: u32,
    max_batch: usize,
    now: u64,
    free_at: u64,
    dice: u64,
    queue: VecDeque<(usize, usize)>,
    calls: Vec<Option<Call>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_so_far: u64,
    done: usize,
    /// Ends of calls at each limit.
    at_limit: [u64; 64],
}

impl Sim {
    fn new(workers: u32, pace: Pace, cost: Cost, producers: usize, depth: usize) -> Self {
        let mut sim = Self {
            pace,
            cost,
            workers,
            max_batch: 256,
            now: 1,
            free_at: 0,
            dice: 7,
            queue: VecDeque::new(),
            calls: Vec::new(),
            events: BinaryHeap::new(),
            events_so_far: 0,
            done: 0,
            at_limit: [0; 64],
        };
        for producer in 0..producers {
            let ops = depth;
            sim.at(1 + producer as u64, Event::Publish { producer, ops });
        }
        sim
    }

    fn learning(workers: u32, cost: Cost, depth: usize) -> Self {
        Self::new(workers, Pace::new(workers, RULES), cost, 4, depth)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events_so_far += 1;
        self.events.push(Reverse((time, self.events_so_far, event)));
    }

    /// 0.8 to 1.2 times `ns`.
    fn noisy(&mut self, ns: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6364136223846793005).wrapping_add(1);
        ns * 4 / 5 + ns * 2 / 5 * (self.dice >> 54) / 1024
    }

    fn holders(&self) -> u32 {
        self.calls.iter().flatten().count() as u32
    }

    fn take(&mut self) {
        while !self.queue.is_empty() && self.holders() < self.workers.min(self.pace.limit(|| 0)) {
            let mut begun = self.pace.begin();
            let (mut ops, mut len) = (Vec::new(), 0);
            let free = self.workers.min(self.pace.limit(|| 0)) - self.holders();
            let queued = self.queue.iter().map(|(_, ops)| ops).sum();
            let splits = self.pace.splits();
            let most = match splits {
                false => self.max_batch,
                true => self.pace.share(queued, free).min(self.max_batch),
            };
            while len < most
                && let Some((producer, n)) = self.queue.pop_front()
            {
                let room = n.min(most - len);
                len += room;
                ops.push((producer, room));
                if room < n {
                    self.queue.push_front((producer, n - room));
                    break;
                }
            }
            if splits {
                self.pace.took(&mut begun, len);
            }
            let left = !self.queue.is_empty() && len == self.max_batch;
            let ends = match self.cost {
                Cost::Queue { call, key } => {
                    let cost = self.noisy(call + key * len as u64);
                    self.free_at = self.free_at.max(self.now) + cost;
                    self.free_at
                }
                Cost::Apart { call, key } => self.now + self.noisy(call + key * len as u64),
            };
            let call = Call {
                begun,
                since: self.now,
                left,
                ops,
                len,
            };
            let place = self.calls.iter().position(Option::is_none);
            let place = place.unwrap_or_else(|| {
                self.calls.push(None);
                self.calls.len() - 1
            });
            self.calls[place] = Some(call);
            self.at(ends, Event::CallEnds(place));
        }
    }

    /// For so many ns. Returns the ops a second.
    fn run(&mut self, time: u64) -> f64 {
        let (end, before) = (self.now + time, self.done);
        self.at_limit = [0; 64];
        while let Some(&Reverse((at, _, event))) = self.events.peek()
            && at < end
        {
            self.events.pop();
            self.now = at;
            match event {
                Event::Publish { producer, ops } => self.queue.push_back((producer, ops)),
                Event::CallEnds(place) => {
                    let call = self.calls[place].take().unwrap();
                    self.done += call.len;
                    let limit = self.pace.limit(|| 0).min(self.workers);
                    self.at_limit[limit as usize] += 1;
                    let ended = Ended {
                        begun: call.begun,
                        since: call.since,
                        ops: call.len,
                        bytes: call.len * 4096,
                        left: call.left,
                    };
                    self.pace.end(ended, self.now);
                    // One producer after the other sees its answers.
                    for (nth, (producer, ops)) in call.ops.into_iter().enumerate() {
                        let wakes = self.now + 20_000 * (nth as u64 + 1);
                        self.at(wakes, Event::Publish { producer, ops });
                    }
                }
            }
            // What comes at one moment is taken together.
            let more = self.events.peek();
            if more.is_none_or(|Reverse((next, ..))| *next > self.now) {
                self.take();
            }
        }
        self.now = end;
        (self.done - before) as f64 * SECOND as f64 / time as f64
    }

    fn best(&self) -> u32 {
        self.pace.climb.lock().unwrap().best()
    }
}

/// Ops a second with no more than so many calls at once, ever.
fn fixed(workers: u32, limit: u32, cost: Cost, depth: usize) -> f64 {
    let pace = Pace::new(workers, RULES);
    pace.learned(limit, 0, 0);
    Sim::new(workers, pace, cost, 4, depth).run(3 * SECOND)
}

/// As measured on a loaded Mooncake over loopback.
const MOONCAKE: Cost = Cost::Queue {
    call: 2_000_000,
    key: 71_000,
};

#[test]
fn calls_that_share_a_bottleneck_are_made_one_at_a_time() {
    for (workers, depth) in [(2, 64), (3, 64), (4, 64), (8, 64), (16, 64)] {
        let mut sim = Sim::learning(workers, MOONCAKE, depth);
        let began = sim.run(SECOND / 4);
        sim.run(30 * SECOND);
        assert_eq!(sim.best(), 1, "{workers} workers");
        let (learned, best) = (sim.run(60 * SECOND), fixed(workers, 1, MOONCAKE, depth));
        assert!(
            learned > 0.96 * best,
            "{workers} workers: {learned} of {best}"
        );
        assert!(
            learned > 1.05 * began,
            "{workers} workers: {learned} after {began}"
        );
    }
}

#[test]
fn calls_that_sleep_side_by_side_are_made_by_all() {
    let asleep = [
        Cost::Apart {
            call: 1_000_000,
            key: 0,
        },
        Cost::Apart {
            call: 100_000,
            key: 20_000,
        },
    ];
    for (workers, cost) in [2, 3, 4]
        .into_iter()
        .flat_map(|w| asleep.map(|cost| (w, cost)))
    {
        let mut sim = Sim::learning(workers, cost, 64);
        sim.run(6 * SECOND);
        let learned = sim.run(12 * SECOND);
        let best = (1..=workers)
            .map(|limit| fixed(workers, limit, cost, 64))
            .fold(0.0, f64::max);
        let least = fixed(workers, 1, cost, 64);
        assert!(
            best > 1.3 * least,
            "{workers} workers, {cost:?}: {best} of {least} is no case"
        );
        assert!(
            learned > 0.95 * best,
            "{workers} workers, {cost:?}: {learned} of {best}"
        );
    }
}

/// One caller's burst is one batch unless it is split; then a sleeping store has only ever one call.
#[test]
fn a_burst_of_one_caller_is_split_where_that_brings_more() {
    let alone = |pace, cost| Sim::new(3, pace, cost, 1, 64);
    let (call, key) = (500_000, 6_000);
    for (cost, parts) in [
        (Cost::Apart { call, key }, 3),
        (Cost::Queue { call, key }, 1),
    ] {
        let rates = [1, 2, 3].map(|limit| {
            let pace = Pace::new(3, RULES);
            pace.learned(limit, 0, 0);
            alone(pace, cost).run(3 * SECOND)
        });
        let best = rates[parts - 1];
        assert!(rates.iter().all(|r| *r <= best), "{cost:?}: {rates:?}");
        let worst = rates.iter().copied().fold(best, f64::min);
        assert!(best > 1.3 * worst, "{cost:?}: {rates:?} is no case");
        let mut sim = alone(Pace::new(3, RULES), cost);
        sim.run(12 * SECOND);
        assert_eq!(sim.best(), parts as u32, "{cost:?}");
    }
}

#[test]
fn what_is_in_flight_is_shared_out_evenly_and_whole() {
    let end = |pace: &Pace, begun, ops| {
        let ended = Ended {
            begun,
            since: 0,
            ops,
            bytes: 0,
            left: false,
        };
        pace.end(ended, 1);
    };
    let take = |pace: &Pace, queued: &mut usize, free| {
        let mut begun = pace.begin();
        let ops = pace.share(*queued, free).min(*queued);
        pace.took(&mut begun, ops);
        *queued -= ops;
        (begun, ops)
    };
    for n in [1, 2, 3, 64, 255, 1000] {
        let pace = Pace::new(3, RULES);
        assert!(!pace.splits(), "open");
        pace.learned(3, 0, 0);
        assert!(pace.splits());
        let mut queued = n;
        let calls = [3, 2, 1].map(|free| take(&pace, &mut queued, free));
        assert_eq!(queued, 0, "{n}");
        assert!(calls.iter().all(|(_, ops)| *ops <= n.div_ceil(3)), "{n}");
        // Two end together, and one of them sends again first: it is one call's part, not two's.
        let [(a, ops), (b, _), (c, _)] = calls;
        end(&pace, a, ops);
        end(&pace, b, ops);
        queued = ops;
        let (again, taken) = take(&pace, &mut queued, 2);
        assert!(taken + 1 >= ops, "{n}: {taken} of {ops}");
        // All have ended: the count has no rest, and in the end what was in flight is forgotten.
        end(&pace, c, n - 2 * ops.min(n / 2));
        end(&pace, again, taken);
        assert_eq!(pace.split.in_calls.load(Relaxed), 0);
        (0..600).for_each(|_| {
            pace.share(9, 3);
        });
        assert_eq!(pace.share(9, 3), 3, "{n}");
        // The last one that may call leaves nothing.
        assert_eq!(pace.share(50, 1), 50);
        pace.learned(1, 0, 0);
        assert!(!pace.splits(), "one call takes all");
    }
}

#[test]
fn it_follows_a_store_that_changes() {
    let apart = Cost::Apart {
        call: 1_000_000,
        key: 20_000,
    };
    let mut sim = Sim::learning(4, MOONCAKE, 64);
    sim.run(20 * SECOND);
    for _ in 0..3 {
        sim.cost = apart;
        sim.run(6 * SECOND);
        let (learned, best) = (sim.run(6 * SECOND), fixed(4, 4, apart, 64));
        assert!(learned > 0.92 * best, "{learned} of {best}, {}", sim.best());
        sim.cost = MOONCAKE;
        sim.run(60 * SECOND);
        assert!(
            sim.run(20 * SECOND) > 0.95 * fixed(4, 1, MOONCAKE, 64),
            "{}",
            sim.best()
        );
    }
}

#[test]
fn trials_cost_little_once_it_knows() {
    for cost in [
        MOONCAKE,
        Cost::Apart {
            call: 1_000_000,
            key: 20_000,
        },
    ] {
        let mut sim = Sim::learning(4, cost, 64);
        sim.run(10 * SECOND);
        let best = sim.best() as usize;
        sim.run(20 * SECOND);
        let ends: u64 = sim.at_limit.iter().sum();
        assert!(
            sim.at_limit[best] * 100 > ends * 85,
            "{cost:?}: {:?}",
            &sim.at_limit[..5]
        );
    }
}

#[test]
fn small_calls_open_the_lane_and_large_ones_pace_it_again() {
    let pace = Pace::new(3, RULES);
    let mut now = 1;
    let mut call = |pace: &Pace, ops, left| {
        now += 1_000_000;
        let begun = pace.begin();
        pace.end(
            Ended {
                begun,
                since: now - 900_000,
                ops,
                bytes: 0,
                left,
            },
            now,
        );
    };
    for _ in 0..100 {
        call(&pace, 7, false);
        assert_eq!(pace.limit(|| 0), u32::MAX);
    }
    (0..4).for_each(|_| call(&pace, 64, false));
    pace.learned(1, 0, 0);
    assert_eq!((pace.limit(|| 0), pace.limit(|| 2)), (1, 3));
    // 13 in each of three calls, had all been free to make them: as many as before.
    (0..100).for_each(|_| call(&pace, 40, false));
    assert_eq!(pace.limit(|| 0), 1);
    // 4 in each.
    assert!((0..20).any(|_| {
        call(&pace, 11, false);
        pace.limit(|| 0) == u32::MAX
    }));
    // One caller alone, after many.
    pace.learned(1, 0, 0);
    (0..9).for_each(|_| call(&pace, 1, false));
    assert_eq!(pace.limit(|| 0), u32::MAX);
    // Large values: few ops, and more of them waiting.
    (0..4).for_each(|_| call(&pace, 1, true));
    assert_eq!(pace.limit(|| 0), 1);
}

#[test]
fn one_worker_and_a_bound_that_stands_have_nothing_to_learn() {
    for pace in [Pace::new(1, RULES), Pace::off()] {
        for now in 1..1000 {
            let begun = pace.begin();
            let ended = Ended {
                begun,
                since: now,
                ops: 256,
                bytes: 0,
                left: true,
            };
            pace.end(ended, now * 1_000_000);
        }
        // One worker's calls are one after the other, bound or no bound.
        assert!(!pace.learns() && !pace.holds_back() && pace.limit(|| 0) >= 1);
        assert_eq!(pace.gather_time() > 0, pace.most == 1);
    }
}

#[test]
fn gathering_is_for_one_call_at_a_time_and_stops_where_nobody_sends_again() {
    let pace = Pace::new(3, RULES);
    assert_eq!(pace.gather_time(), 0, "open");
    pace.learned(2, 64_000, 0);
    assert_eq!(pace.gather_time(), 0, "two calls at a time");
    pace.learned(1, 64_000, 0);
    for _ in 0..10 {
        assert_eq!(pace.gather_time(), 1_000);
        pace.gathered(true);
    }
    let mut tried = 0;
    for _ in 0..10_000 {
        if pace.gather_time() > 0 {
            pace.gathered(false);
            tried += 1;
        }
    }
    // Of a 64th each: what is lost is not to be seen.
    assert!((50..100).contains(&tried), "{tried}");
    while pace.gather_time() == 0 {}
    pace.gathered(true);
    assert_eq!(pace.gather_time(), 1_000, "as before");
}

#[test]
fn calls_that_hang_do_not_count_until_they_return() {
    let pace = Pace::new(3, RULES);
    pace.learned(1, 0, 0);
    let end = |begun, now| {
        let ended = Ended {
            begun,
            since: now,
            ops: 64,
            bytes: 0,
            left: true,
        };
        pace.end(ended, now);
    };
    let hangs = pace.begin();
    end(pace.begin(), 1);
    // In time, and just so.
    pace.watch(1, RULES.patience + 1);
    assert_eq!(pace.limit(|| 0), 1);
    pace.watch(1, RULES.patience + 2);
    assert_eq!(pace.limit(|| 0), u32::MAX);
    // Others go on: it is paced again, beside the one that hangs.
    (0..4).for_each(|i| end(pace.begin(), RULES.patience + 3 + i));
    assert_eq!(
        (pace.limit(|| 0), pace.limit(|| 1), pace.limit(|| 2)),
        (2, 2, 3)
    );
    end(hangs, RULES.patience + 9);
    assert_eq!(pace.limit(|| 0), 1);
    // An idle lane hangs nowhere.
    pace.watch(0, 3 * RULES.patience);
    assert_eq!(pace.limit(|| 0), u32::MAX);
    (0..4).for_each(|i| end(pace.begin(), 3 * RULES.patience + i));
    assert_eq!(pace.limit(|| 0), 1);
}

#[test]
fn a_small_call_that_hung_counts_no_more_when_it_has_returned() {
    let pace = Pace::new(3, RULES);
    pace.learned(1, 0, 0);
    let begun = pace.begin();
    let now = RULES.patience + 1;
    pace.watch(1, now);
    assert_eq!(pace.limit(|| 0), u32::MAX, "open, and one is stuck");
    let ended = Ended {
        begun,
        since: 0,
        ops: 1,
        bytes: 0,
        left: false,
    };
    pace.end(ended, now + 1);
    pace.learned(1, 0, now + 1);
    assert_eq!(pace.limit(|| 0), 1);
}
