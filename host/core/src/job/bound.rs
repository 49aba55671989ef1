//! What a status of any kind has room for.

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

/// At most `most` bytes of a text in one line: control characters are escaped, so that a terminal shows them.
pub(crate) fn shown(text: &str, most: usize) -> String {
    let text = text.trim();
    if text.len() <= most && !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    let mut shown = String::new();
    for c in text.chars() {
        let escaped: String = if c.is_control() { c.escape_default().collect() } else { c.into() };
        if shown.len() + escaped.len() > most {
            break;
        }
        shown.push_str(&escaped);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_until_one_does_not_fit() {
        let kept = |room: usize| fitting([3, 4, 9, 1], room, |size| *size).collect::<Vec<_>>();
        assert_eq!((kept(2), kept(7), kept(16), kept(17)), (vec![], vec![3, 4], vec![3, 4, 9], vec![3, 4, 9, 1]));
    }

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        assert_eq!(shown(" a\u{7}b\nc ", 256), "a\\u{7}b\\nc");
        assert!(shown(&"é".repeat(10_000_000), 256).len() <= 256);
    }
}
