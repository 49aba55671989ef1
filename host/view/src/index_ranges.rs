//! Sets of target indexes in the form of a status: zero-based ranges such as `0-249,251`.
//!
//! A text may be cut or malformed, so the parser ignores invalid parts. Source: docs/operationjob.md 2.5.

/// The ranges of one text.
#[derive(Debug)]
pub(crate) struct IndexRanges(Vec<(usize, usize)>);

impl IndexRanges {
    pub(crate) fn read(text: &str) -> Self {
        let ends = |range: &str| -> Option<(usize, usize)> {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last).then_some((first, last))
        };
        let mut ranges: Vec<_> = text.split(',').filter_map(ends).collect();
        ranges.sort_unstable();
        Self(ranges)
    }

    pub(crate) fn contains(&self, index: usize) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= index);
        self.0.iter().take(after).next_back().is_some_and(|(_, last)| *last >= index)
    }

    /// Returns the highest named index. Later indexes may have been cut off.
    pub(crate) fn last(&self) -> Option<usize> {
        self.0.iter().map(|(_, last)| *last).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_within_ranges_are_found_and_words_that_are_no_range_are_left_out() {
        let ranges = IndexRanges::read("10-12, 3,x,7-5,9-,4294967295");
        let found: Vec<usize> = (0..20).filter(|index| ranges.contains(*index)).collect();
        assert_eq!((found, ranges.last()), (vec![3, 10, 11, 12], Some(4_294_967_295)));
        assert_eq!(IndexRanges::read("").last(), None);
    }
}
