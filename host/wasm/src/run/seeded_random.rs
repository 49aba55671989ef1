//! Random numbers that are the same each time the host repeats a call.

use sha2::{Digest, Sha256};

use crate::run::limits::LimitExceeded;

/// The most random bytes in one call. A hash map needs 16.
const RANDOM_BYTES: u64 = 64 * 1024;

/// Random numbers that depend only on the seed (SplitMix64). Do not use them for secrets.
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    /// Returns the random numbers of one attempt at one target of one job.
    pub(crate) fn new(job_uid: &str, target: &str, attempt: u32) -> Self {
        let digest = Sha256::digest(format!("{job_uid}\n{target}\n{attempt}"));
        let first = digest.iter().take(8).fold(0, |seed, byte| (seed << 8) | u64::from(*byte));
        Self(first)
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns this many random bytes.
    pub(crate) fn bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        if len > RANDOM_BYTES {
            let sentence = format!("it asked for more than {RANDOM_BYTES} random bytes at once");
            return Err(wasmtime::Error::new(LimitExceeded(sentence)));
        }
        let words = len.div_ceil(8);
        Ok((0..words).flat_map(|_| self.next().to_le_bytes()).take(len as usize).collect())
    }
}
