//! Bytes, read as choices.

/// What is left of an input. Where there is nothing left it reads zeros.
#[derive(Debug)]
pub struct Input {
    bytes: Vec<u8>,
    at: usize,
}

impl Input {
    /// All of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            at: 0,
        }
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// A number below `n`, which is at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// One of these.
    pub fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// True once in `n`, and not at the end.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }
}
