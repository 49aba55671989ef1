//! The share of targets that must succeed, as an exact number. Source: docs/opsjob.md 2.3, 4.4.
//!
//! `availableRatio` is a decimal number with at most nine decimals. It is stored in billionths, because as a binary fraction 0.9 of ten targets would
//! be slightly more than nine.

/// The number one in billionths.
const ONE: u64 = 1_000_000_000;
/// The most decimals.
const PLACES: usize = 9;

/// A share above 0 and up to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio(u64);

impl Default for Ratio {
    fn default() -> Self {
        Self(ONE)
    }
}

impl Ratio {
    /// Reads a JSON number, such as `0.9`, `1` or `1.00`. Zero counts as absent and gives the default, 1.
    ///
    /// # Errors
    /// If the text is another value. The message says which values are valid.
    pub fn read(text: &str) -> Result<Self, String> {
        let wrong = || format!("a number above 0 and up to 1 with at most {PLACES} decimals, and is {text}");
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let has_lead = whole.len() > 1 && whole.starts_with('0');
        if !are_digits(whole) || !are_digits(decimals) || decimals.len() > PLACES || has_lead {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let decimals: u64 = format!("{decimals:0<PLACES$}").parse().map_err(|_| wrong())?;
        let billionths = whole.checked_mul(ONE).and_then(|whole| whole.checked_add(decimals)).ok_or_else(wrong)?;
        match billionths {
            0 => Ok(Self::default()),
            1..=ONE => Ok(Self(billionths)),
            _ => Err(wrong()),
        }
    }

    /// Returns how many of `targets` may fail.
    pub fn tolerated(self, targets: usize) -> usize {
        let needed = (targets as u128 * u128::from(self.0)).div_ceil(u128::from(ONE));
        // The share is at most 1, so `needed` is at most `targets`.
        targets.saturating_sub(usize::try_from(needed).unwrap_or(targets))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nine_tenths_of_ten_are_nine() {
        let tolerated = |text: &str, targets| Ratio::read(text).unwrap().tolerated(targets);
        assert_eq!(tolerated("0.9", 10), 1);
        assert_eq!(tolerated("0.7", 10), 3);
        assert_eq!((tolerated("1", 5_000), tolerated("1.0", 7), tolerated("0", 7)), (0, 0, 0));
        assert_eq!((tolerated("0.000000001", 5_000), tolerated("0.000000001", 0)), (4_999, 0));
        assert_eq!(tolerated("0.333333333", 3), 2);
        assert_eq!(tolerated("0.333333334", 3), 1);
    }

    #[test]
    fn what_is_no_share_is_refused_with_what_it_has_to_be() {
        for text in [
            "-1",
            "1.000000001",
            "2",
            "0.0000000001",
            "1e-1",
            "",
            ".5",
            "5.",
            "00.5",
            "NaN",
            "99999999999999999999",
            "0,5",
        ] {
            assert!(Ratio::read(text).unwrap_err().contains("above 0 and up to 1"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn one_more_failure_than_tolerated_is_below_the_share(billionths in 1..=ONE, targets in 0usize..=5_000) {
            let ratio = Ratio(billionths);
            let tolerated = ratio.tolerated(targets);
            let succeeded = |failed: usize| (targets - failed) as u128 * u128::from(ONE);
            let wanted = targets as u128 * u128::from(billionths);
            prop_assert!(succeeded(tolerated) >= wanted);
            prop_assert!(tolerated == targets || succeeded(tolerated + 1) < wanted);
        }
    }
}
