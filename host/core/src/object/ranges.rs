//! Sets of target indexes as text: zero-based ranges, ascending and merged, such as `0-249,251`.
//!
//! The parser skips parts that it does not understand. Source: docs/operationjob.md 2.5.

use std::collections::BTreeSet;

/// Returns `set` as ranges, cut after the last whole range that fits into `limit` bytes. The flag is true if the text was cut.
pub fn format(set: &BTreeSet<u32>, limit: usize) -> (String, bool) {
    let mut text = String::new();
    let mut indexes = set.iter().copied().peekable();
    while let Some(first) = indexes.next() {
        let mut last = first;
        while let Some(next) = indexes.next_if(|next| *next == last + 1) {
            last = next;
        }
        let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
        let comma = usize::from(!text.is_empty());
        if text.len() + comma + range.len() > limit {
            return (text, true);
        }
        if comma == 1 {
            text.push(',');
        }
        text.push_str(&range);
    }
    (text, false)
}

/// Returns the indexes below `count` that `text` names. Ignores words that are not ranges.
pub fn parse(text: &str, count: u32) -> BTreeSet<u32> {
    let ends = |range: &str| -> Option<(u32, u32)> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    let ranges = text.split(',').filter_map(ends);
    ranges.flat_map(|(first, last)| first..=last.min(count.saturating_sub(1))).filter(|index| *index < count).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_are_merged() {
        let set = [0, 1, 2, 4, 9, 10].into();
        assert_eq!(format(&set, 100), ("0-2,4,9-10".to_owned(), false));
    }

    #[test]
    fn a_cut_text_ends_after_a_whole_range() {
        let set = [0, 2, 4, 6].into();
        assert_eq!(format(&set, 4), ("0,2".to_owned(), true));
    }

    #[test]
    fn words_that_are_no_range_are_left_out() {
        assert_eq!(parse("1,x,3-,7-5,4294967295, 2", 5), [1, 2].into());
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(set in proptest::collection::btree_set(0u32..10_000, 0..200)) {
            prop_assert_eq!(parse(&format(&set, usize::MAX).0, 10_000), set);
        }
    }
}
