//! Reads the header `Range` of a request for a file. Source: docs/opsjob-rest.md 7.
//!
//! Follows RFC 9110 section 14. It refuses no header: an invalid set of byte ranges counts as absent.

use std::ops::RangeInclusive;

/// The most ranges of one answer. A client that asks for more ranges gets the whole file.
const MOST: usize = 16;

/// The bytes that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The whole file.
    Whole,
    /// Only bytes beyond the end of the file.
    Nothing,
    /// The ranges of the file.
    Parts(Vec<RangeInclusive<u64>>),
}

/// Reads the bytes that a header asks for, of a file of this size.
pub(crate) fn wanted(header: &str, size: u64) -> Wanted {
    let Some((unit, set)) = header.split_once('=') else { return Wanted::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Wanted::Whole;
    }
    let given = set.split(',').map(str::trim).filter(|range| !range.is_empty());
    let Some(given) = given.take(MOST.saturating_add(1)).map(Given::read).collect::<Option<Vec<Given>>>() else {
        return Wanted::Whole;
    };
    if given.is_empty() || given.len() > MOST {
        return Wanted::Whole;
    }
    let parts: Vec<RangeInclusive<u64>> = given.iter().filter_map(|range| range.within(size)).collect();
    let bytes = parts.iter().map(length).fold(0, u64::saturating_add);
    match parts.len() {
        0 => Wanted::Nothing,
        // Overlapping ranges would make the answer larger than the file.
        2.. if bytes > size => Wanted::Whole,
        _ => Wanted::Parts(parts),
    }
}

/// Returns the number of bytes of a range.
pub(crate) fn length(range: &RangeInclusive<u64>) -> u64 {
    range.end().saturating_sub(*range.start()).saturating_add(1)
}

/// A range as the header writes it.
enum Given {
    /// The bytes from the first position to the second one, or to the end.
    From(u64, Option<u64>),
    /// This many bytes at the end.
    Last(u64),
}

impl Given {
    fn read(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            // A number that does not fit is larger than any file.
            is_number.then(|| text.parse().unwrap_or(u64::MAX))
        };
        match (first.trim_end(), last.trim_start()) {
            ("", last) => number(last).map(Self::Last),
            (first, "") => number(first).map(|first| Self::From(first, None)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Self::From(first, Some(last)))
            }
        }
    }

    fn within(&self, size: u64) -> Option<RangeInclusive<u64>> {
        let end = size.checked_sub(1)?;
        match *self {
            Self::From(first, last) => (first <= end).then(|| first..=last.map_or(end, |last| last.min(end))),
            Self::Last(count) => (count > 0).then(|| size.saturating_sub(count)..=end),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_of_bytes_are_read_in_any_form_that_the_rfc_has() {
        for (header, parts) in [
            ("bytes=0-3", vec![0..=3]),
            ("Bytes=0-3", vec![0..=3]),
            ("bytes = 2 - 3 ", vec![2..=3]),
            ("bytes=007-", vec![7..=9]),
            ("bytes=-3", vec![7..=9]),
            ("bytes=-300", vec![0..=9]),
            ("bytes=8-99999999999999999999999", vec![8..=9]),
            ("bytes=0-0,4-5,-1", vec![0..=0, 4..=5, 9..=9]),
            ("bytes=,0-1, ,", vec![0..=1]),
            ("bytes=0-1,40-", vec![0..=1]),
        ] {
            assert_eq!(wanted(header, 10), Wanted::Parts(parts), "{header}");
        }
    }

    #[test]
    fn a_header_that_is_no_set_of_ranges_of_bytes_is_as_absent() {
        for header in
            ["lines=0-3", "bytes", "bytes=", "bytes=a-b", "bytes=3-1", "bytes=-", "bytes=1", "bytes=+1-2", "=0-1"]
        {
            assert_eq!(wanted(header, 10), Wanted::Whole, "{header}");
        }
        assert_eq!(wanted("bytes=0-9,0-9", 10), Wanted::Whole, "they overlap");
        assert_eq!(wanted(&format!("bytes={}", "0-0,".repeat(10_000)), 10), Wanted::Whole, "there are too many");
    }

    #[test]
    fn bytes_that_a_file_does_not_have_are_nothing() {
        for (header, size) in [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)] {
            assert_eq!(wanted(header, size), Wanted::Nothing, "{header}");
        }
    }

    proptest! {
        #[test]
        fn no_header_yields_bytes_beyond_the_file_or_more_than_it_has(header in "(bytes=)?[-0-9, a-z=]{0,40}", size in 0_u64..100) {
            if let Wanted::Parts(parts) = wanted(&header, size) {
                prop_assert!(parts.iter().all(|part| part.start() <= part.end() && *part.end() < size));
                prop_assert!(parts.iter().map(length).sum::<u64>() <= size);
            }
        }
    }
}
