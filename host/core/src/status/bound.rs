//! What a status has room for.

/// Those of the entries, from the first on, that fit into so many bytes together.
pub(crate) fn fitting<T>(
    entries: impl IntoIterator<Item = T>,
    mut room: usize,
    bytes: impl Fn(&T) -> usize,
) -> impl Iterator<Item = T> {
    entries.into_iter().map_while(move |entry| {
        room = room.checked_sub(bytes(&entry))?;
        Some(entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_until_one_does_not_fit() {
        let kept = |room: usize| fitting([3, 4, 9, 1], room, |size| *size).collect::<Vec<_>>();
        assert_eq!((kept(2), kept(7), kept(16), kept(17)), (vec![], vec![3, 4], vec![3, 4, 9], vec![3, 4, 9, 1]));
    }
}
