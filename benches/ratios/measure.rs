//! How two sides are measured: in turns, many times, in one run.

use std::time::{Duration, Instant};

use core_affinity::CoreId;

/// Median and quartiles.
#[derive(Clone, Copy)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

pub fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    let at = |part: f64| values[((values.len() - 1) as f64 * part).round() as usize];
    Spread {
        median: at(0.5),
        low: at(0.25),
        high: at(0.75),
    }
}

/// How much is done.
#[derive(Clone, Copy)]
pub struct Effort {
    /// How often each side has its turn.
    pub turns: usize,
    /// How long a turn of a closed loop takes.
    pub turn: Duration,
    /// Samples in a turn that measures single round trips.
    pub samples: usize,
    /// Large stores in a burst.
    pub stores: usize,
    /// How often a turn is repeated in which the system took a core away from one of this process' threads for another process. Such a
    /// turn says nothing: two threads that wait for each other stand still together.
    pub repeats: usize,
    /// After this no turn is repeated, and no further one begun where there are enough.
    pub limit: Duration,
}

impl Effort {
    /// For sides that have more threads than there are cores: those take the cores from each other.
    pub fn crowded(mut self) -> Self {
        self.repeats = 0;
        self.turn *= 8;
        self
    }
}

/// What two sides did.
pub struct Outcome {
    /// Ours to theirs, turn by turn.
    pub ratio: Spread,
    pub ours: Spread,
    pub theirs: Spread,
    /// Share of the turns that were disturbed each time, and count all the same.
    pub disturbed: f64,
}

/// Turns that are enough where time is up.
const ENOUGH: usize = 11;

/// What a side did in a turn.
pub struct Turn {
    pub value: f64,
    /// No thread lost its core while it was measured.
    pub calm: bool,
}

/// A value that does not mind: the middle one of many.
impl From<f64> for Turn {
    fn from(value: f64) -> Self {
        Self { value, calm: true }
    }
}

/// How often a thread of this process has lost its core though it had more to do.
pub fn interruptions() -> i64 {
    // SAFETY: a struct of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a writable struct.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    usage.ru_nivcsw
}

/// Lets both sides have their turns, each after the other and each first as often, after one that is not counted.
pub fn alternate(
    effort: Effort,
    mut ours: impl FnMut() -> Turn,
    mut theirs: impl FnMut() -> Turn,
) -> Outcome {
    ours();
    theirs();
    let started = Instant::now();
    let mut disturbed = 0;
    let mut turn = |side: &mut dyn FnMut() -> Turn| {
        for nth in 0.. {
            let Turn { value, calm } = side();
            if calm || nth >= effort.repeats || started.elapsed() > effort.limit {
                disturbed += usize::from(!calm && effort.repeats > 0);
                return value;
            }
        }
        unreachable!("it returns")
    };
    let (mut a, mut b, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for nth in 0..effort.turns {
        if nth >= ENOUGH && started.elapsed() > effort.limit {
            break;
        }
        let (one, other);
        if nth % 2 == 0 {
            one = turn(&mut ours);
            other = turn(&mut theirs);
        } else {
            other = turn(&mut theirs);
            one = turn(&mut ours);
        }
        a.push(one);
        b.push(other);
        ratio.push(one / other);
    }
    Outcome {
        disturbed: disturbed as f64 / (2 * ratio.len()) as f64,
        ratio: spread(ratio),
        ours: spread(a),
        theirs: spread(b),
    }
}

/// A way to have ops done.
pub trait Side {
    /// How many more ops may be in flight.
    fn room(&self) -> usize;
    /// Submits so many, together.
    fn submit(&mut self, n: usize);
    /// Takes what is done.
    fn reap(&mut self) -> usize;
}

/// Keeps a side full, in bursts, for a turn; ops per second.
pub fn closed_loop(side: &mut impl Side, burst: usize, turn: Duration) -> Turn {
    let depth = side.room();
    let mut some = || {
        let mut got = 0;
        while got < 2048 {
            while side.room() >= burst {
                side.submit(burst);
            }
            match side.reap() {
                0 => std::hint::spin_loop(),
                n => got += n,
            }
        }
        got
    };
    some(); // Whoever was asleep is awake now.
    let before = interruptions();
    let started = Instant::now();
    let mut got = 0;
    while started.elapsed() < turn {
        got += some();
    }
    let took = started.elapsed();
    let calm = interruptions() == before;
    while side.room() < depth {
        side.reap();
    }
    let value = got as f64 / took.as_secs_f64();
    Turn { value, calm }
}

/// Pins the calling thread to the first core, or to the last, of two or more: both sides alike, so that the scheduler has no part
/// in the ratio.
#[derive(Clone, Copy)]
pub enum Core {
    First,
    Last,
}

pub fn core(which: Core) -> Option<usize> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let core = match which {
        Core::First => cores.first(),
        Core::Last => cores.last(),
    };
    core.map(|core| core.id)
}

pub fn pin(core: Option<usize>) {
    if let Some(id) = core {
        core_affinity::set_for_current(CoreId { id });
    }
}

/// Nanoseconds of the middle one of so many round trips.
pub fn round_trips(samples: usize, mut round_trip: impl FnMut()) -> Turn {
    let clock = quanta::Clock::new();
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        let started = clock.raw();
        round_trip();
        times.push(clock.delta_as_nanos(started, clock.raw()) as f64);
    }
    spread(times).median.into()
}

/// Distinct keys of 101 bytes, as long as LMCache's.
pub fn keys() -> Vec<String> {
    (0..4096).map(|i| format!("{i:0>101}")).collect()
}
