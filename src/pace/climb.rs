//! The search for the best limit, one window after the other.
//!
//! It rests at a limit, then tries another: windows of both in turns (A B B A A B ...), so that what changes meanwhile
//! changes both. The medians of their ratios decide; fewer calls at once are taken where they bring about as much. Each trial
//! that changes nothing makes the rest longer, so trials cost little; none is the last, so it follows a store that changes.

/// Windows of rest at most.
const LONGEST_REST: u32 = 128;
/// Each trial that changes nothing makes the rest so many times as long: a few trials, and it has settled.
const LONGER: u32 = 4;
/// Pairs of windows of a trial at most.
const PAIRS: usize = 3;
/// As good as the present limit: enough for a lower one.
const SAME: f64 = 0.97;
/// Better than the present limit: what a higher one must be. Apart from `1 / SAME`, so that noise alone moves nothing for long.
const BETTER: f64 = 1.05;
/// So clear that a few pairs are enough.
const CLEARLY_BETTER: f64 = 1.2;
const CLEARLY_WORSE: f64 = 0.85;

/// See the module's page.
#[derive(Debug)]
pub(super) struct Climb {
    /// Limits that are tried, rising.
    levels: Vec<u32>,
    /// The present one's place.
    at: usize,
    /// The one that is tried.
    candidate: usize,
    /// Which candidate comes next.
    turn: usize,
    /// Windows left until a trial; 0: it goes on.
    rest: u32,
    longest: u32,
    /// Windows of the trial that are over.
    windows: usize,
    /// What the first of a pair brought.
    first: f64,
    /// The candidate's to the present limit's.
    ratios: [f64; PAIRS],
}

impl Climb {
    pub(super) fn new(most: u32) -> Self {
        // Steps of a third to a half: 62 are not tried one by one.
        let steps = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48];
        let mut levels: Vec<_> = steps.into_iter().filter(|&n| n < most).collect();
        levels.push(most);
        Self {
            at: levels.len() - 1,
            levels,
            candidate: 0,
            turn: 0,
            rest: 1,
            longest: 1,
            windows: 0,
            first: 0.0,
            ratios: [0.0; PAIRS],
        }
    }

    /// The limit of the window that goes on.
    pub(super) fn limit(&self) -> u32 {
        let at = if self.is_trying() {
            self.candidate
        } else {
            self.at
        };
        self.levels[at]
    }

    fn is_trying(&self) -> bool {
        self.rest == 0 && matches!(self.windows % 4, 1 | 2)
    }

    /// A window is over, with so much work a tick. The limit of the next.
    pub(super) fn next(&mut self, rate: f64) -> u32 {
        if self.rest > 0 {
            self.rest -= 1;
            if self.rest == 0 {
                self.candidate = self.pick();
                self.windows = 0;
            }
            return self.limit();
        }
        let tried = self.is_trying();
        self.windows += 1;
        if self.windows % 2 == 1 {
            self.first = rate;
        } else {
            let pairs = self.windows / 2;
            self.ratios[pairs - 1] = match tried {
                true => rate / self.first,
                false => self.first / rate,
            };
            match self.verdict(pairs) {
                Some(true) => {
                    self.at = self.candidate;
                    self.longest = 1;
                    self.rest = 1;
                }
                Some(false) => self.reject(),
                None => {}
            }
        }
        self.limit()
    }

    /// The neighbours, and both ends: the best may lie behind something worse.
    fn pick(&mut self) -> usize {
        let last = self.levels.len() - 1;
        loop {
            let candidate = match self.turn % 4 {
                0 => 0,
                1 => self.at.saturating_sub(1),
                2 => (self.at + 1).min(last),
                _ => last,
            };
            self.turn += 1;
            if candidate != self.at || last == 0 {
                return candidate;
            }
        }
    }

    /// Whether the candidate is taken; `None`: go on.
    fn verdict(&mut self, pairs: usize) -> Option<bool> {
        let ratios = &mut self.ratios[..pairs];
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[pairs - 1]);
        if pairs >= 2 && most < CLEARLY_WORSE {
            return Some(false);
        }
        if pairs >= 2 && least > CLEARLY_BETTER {
            return Some(true);
        }
        if pairs < PAIRS {
            return None;
        }
        let enough = match self.candidate < self.at {
            true => SAME,
            false => BETTER,
        };
        Some(ratios[pairs / 2] > enough)
    }

    /// Ends a trial, if one goes on: it stays as it was.
    pub(super) fn reject(&mut self) {
        if self.rest == 0 {
            self.longest = self.longest.saturating_mul(LONGER).min(LONGEST_REST);
            self.rest = self.longest;
        }
    }

    /// The limit at which it rests.
    #[cfg(test)]
    pub(super) fn best(&self) -> u32 {
        self.levels[self.at]
    }

    /// As if it had been found, for long.
    #[cfg(test)]
    pub(super) fn learned(&mut self, limit: u32) {
        self.at = self.levels.iter().position(|&l| l == limit).unwrap();
        self.longest = u32::MAX;
        self.rest = u32::MAX;
    }
}
