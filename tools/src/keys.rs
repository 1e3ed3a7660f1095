//! Keys as LMCache writes them: `model@rank@group@hash[@salt]`, rank as 8 hex digits, the hash 32 bytes in hex.

use std::io::Write;

use crate::rng::Rng;

/// The model whose keys a replay writes.
const MODEL: &str = "Qwen/Qwen3-8B";
const HASH_DIGITS: usize = 64;

/// Makes the keys of one run: 89 bytes, and the salt.
#[derive(Clone, Debug)]
pub struct KeyMaker {
    /// A whole key; only its hash differs between blocks.
    template: Vec<u8>,
    hash_at: usize,
}

impl KeyMaker {
    /// Keys under this salt; an empty one is left out, as LMCache does.
    ///
    /// # Errors
    /// The salt has a character other than letters, digits, `.`, `_` and `-`, or more than 100 of them.
    pub fn new(salt: &str) -> Result<Self, String> {
        if salt.len() > 100 {
            return Err(format!("{} characters, at most 100 are taken", salt.len()));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if let Some(bad) = salt.chars().find(|&c| !plain(c)) {
            return Err(format!("{bad:?} is not a letter, a digit, '.', '_' or '-'"));
        }
        let mut template = format!("{MODEL}@{:08x}@{:x}@", 0, 0);
        let hash_at = template.len();
        template.extend(std::iter::repeat_n('0', HASH_DIGITS));
        if !salt.is_empty() {
            template.push('@');
            template.push_str(salt);
        }
        Ok(Self {
            template: template.into_bytes(),
            hash_at,
        })
    }

    /// Writes the key of block `id` into `key`, whose memory is reused.
    pub fn write(&self, id: u64, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(&self.template);
        // The first word is a bijection of the id: different ids have different keys.
        let mut hash = Rng::new(id);
        let mut place = &mut key[self.hash_at..self.hash_at + HASH_DIGITS];
        for _ in 0..HASH_DIGITS / 16 {
            // The digits fill the place exactly.
            let _ = write!(place, "{:016x}", hash.next_u64());
        }
    }

    /// The key of block `id` as text.
    pub fn text(&self, id: u64) -> String {
        let mut key = Vec::new();
        self.write(id, &mut key);
        String::from_utf8_lossy(&key).into_owned()
    }
}

/// A salt that no earlier run had: 16 random hex digits.
pub fn random_salt() -> String {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hash seeds are the operating system's randomness.
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{random:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_have_the_shape_of_lmcache() {
        let key = KeyMaker::new("5a17").expect("a salt").text(3);
        let parts: Vec<_> = key.split('@').collect();
        assert_eq!(parts.len(), 5, "{key}");
        assert_eq!(parts[..3], ["Qwen/Qwen3-8B", "00000000", "0"]);
        assert_eq!(parts[3].len(), 64);
        assert!(parts[3].bytes().all(|c| c.is_ascii_hexdigit()));
        assert_eq!(parts[4], "5a17");
        let unsalted = KeyMaker::new("").expect("no salt").text(3);
        assert_eq!(format!("{unsalted}@5a17"), key);
        assert_eq!(unsalted.len(), 89);
    }

    #[test]
    fn keys_differ_by_id_and_salt() {
        let (a, b) = (KeyMaker::new("a"), KeyMaker::new("b"));
        let (a, b) = (a.expect("a salt"), b.expect("a salt"));
        let keys: HashSet<_> = (0..10_000)
            .flat_map(|id| [a.text(id), b.text(id)])
            .collect();
        assert_eq!(keys.len(), 20_000);
    }

    #[test]
    fn salts_that_would_spoil_keys_are_refused() {
        for salt in ["a@b", "a b", "ä", "a\0", &"x".repeat(101)] {
            assert!(KeyMaker::new(salt).is_err(), "{salt:?}");
        }
    }

    #[test]
    fn random_salts_are_salts_and_differ() {
        let (a, b) = (random_salt(), random_salt());
        assert_ne!(a, b);
        assert!(KeyMaker::new(&a).is_ok());
    }
}
