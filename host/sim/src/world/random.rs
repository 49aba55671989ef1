//! Seeded draws. The same seed and words give the same number, duration or suffix. There is no state, so the order in which
//! tasks draw does not matter.

use std::time::Duration;

/// The alphabet of Kubernetes' generated suffixes. It cannot spell words by accident.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Offset basis and prime of the 64-bit FNV-1a hash.
const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0000_0100_0000_01b3);

/// A range of durations, including both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The shortest duration.
    pub least: Duration,
    /// The longest duration.
    pub most: Duration,
}

impl Span {
    /// Returns a span between two numbers of milliseconds.
    #[must_use]
    pub const fn millis(least: u64, most: u64) -> Self {
        Self { least: Duration::from_millis(least), most: Duration::from_millis(most) }
    }
}

/// The source of all random values in a simulated cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeededRandom {
    seed: u64,
}

impl SeededRandom {
    /// Returns a source. The same seed gives the same values.
    #[must_use]
    pub(crate) const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns the number for these words.
    #[must_use]
    pub(crate) fn draw(&self, words: &[&str]) -> u64 {
        let mut state = self.seed.to_le_bytes().iter().fold(FNV.0, |hash, byte| step(hash, *byte));
        for word in words {
            state = word.bytes().chain([0]).fold(state, step);
        }
        scramble(state)
    }

    /// Returns a duration within the span, in whole milliseconds.
    #[must_use]
    pub(crate) fn between(&self, span: Span, words: &[&str]) -> Duration {
        let width = u64::try_from(span.most.saturating_sub(span.least).as_millis()).unwrap_or(u64::MAX - 1);
        let extra = self.draw(words).checked_rem(width.saturating_add(1)).unwrap_or(0);
        span.least + Duration::from_millis(extra)
    }

    /// Returns a suffix of five letters and digits, as `generateName` appends it.
    #[must_use]
    pub(crate) fn suffix(&self, words: &[&str]) -> String {
        letters(self.draw(words), 5)
    }
}

/// Returns the hash of a text in the alphabet of generated names, as in `web-7bdb974bc7`.
pub(crate) fn text_hash(text: &str) -> String {
    letters(scramble(text.bytes().fold(FNV.0, step)), 10)
}

fn letters(mut number: u64, count: usize) -> String {
    let base = LETTERS.len() as u64;
    let mut name = String::with_capacity(count);
    for _ in 0..count {
        let index = usize::try_from(number % base).unwrap_or(0);
        name.push(LETTERS.get(index).copied().map_or('b', char::from));
        number /= base;
    }
    name
}

const fn step(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(FNV.1)
}

/// The finalizer of SplitMix64. FNV alone gives short words the same high bits.
const fn scramble(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_draw_the_same_number_and_other_seeds_differ() {
        let random = SeededRandom::new(7);
        assert_eq!(random.draw(&["foo", "1"]), SeededRandom::new(7).draw(&["foo", "1"]));
        assert_ne!(random.draw(&["foo", "1"]), random.draw(&["foo1"]));
        assert_ne!(random.suffix(&["foo-", "1"]), SeededRandom::new(8).suffix(&["foo-", "1"]));
    }

    #[test]
    fn durations_stay_within_their_span() {
        let span = Span::millis(10, 12);
        let seen: std::collections::BTreeSet<_> =
            (0..200).map(|n| SeededRandom::new(n).between(span, &["start"]).as_millis()).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [10, 11, 12]);
    }
}
