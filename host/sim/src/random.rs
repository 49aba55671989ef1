//! Draws UIDs and name suffixes from a seed. The same seed and the same requests give the same objects.

/// A SplitMix64 generator: small, and good enough for names.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// The letters of generated names, as in Kubernetes: no vowels, and no digits that resemble letters.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

impl Random {
    /// Returns a generator. The same seed draws the same numbers.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Draws a number from zero to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        let drawn = self.next();
        most.checked_add(1).and_then(|count| drawn.checked_rem(count)).unwrap_or(drawn)
    }

    /// Draws a version 4 UUID.
    pub(crate) fn uid(&mut self) -> String {
        let (a, b) = (self.next(), self.next());
        let (time_low, time_mid, version) = (a >> 32, (a >> 16) & 0xFFFF, (a & 0x0FFF) | 0x4000);
        let (variant, node) = ((b >> 48) & 0x3FFF | 0x8000, b & 0xFFFF_FFFF_FFFF);
        format!("{time_low:08x}-{time_mid:04x}-{version:04x}-{variant:04x}-{node:012x}")
    }

    /// Draws the five letters that follow a `generateName`.
    pub(crate) fn suffix(&mut self) -> String {
        let letter = |value: u64| LETTERS.get((value % 27) as usize).copied().unwrap_or(b'x');
        (0..5).map(|_| char::from(letter(self.next() >> 8))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_names_the_same_objects() {
        let draw = |seed| {
            let mut random = Random::seeded(seed);
            (random.uid(), random.suffix())
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(draw(1).0.len(), 36);
    }
}
