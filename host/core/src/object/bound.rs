//! Limits on the length of texts and lists in a status.

/// Bytes of the longest escaped character. A text that is read with this margin shows whether it is too long.
const LONGEST_ESCAPE: usize = 10;
/// The smallest bound that leaves out the middle of a message. A smaller bound keeps only the beginning.
const LEAST_CUT: usize = 12;

/// Returns the first entries that together fit into `room` bytes.
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

/// Returns at most `most` bytes of a text in one line, cut at the end. Control characters are escaped, so that a terminal shows them.
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

/// Returns at most `most` bytes of a message in one line, with control characters escaped. A longer message loses its middle, because the object
/// comes first in a message and the cause last.
pub fn shown_cause(text: &str, most: usize) -> String {
    let (text, mark) = (text.trim(), "…");
    let whole = shown(text, most.saturating_add(LONGEST_ESCAPE));
    if whole.len() <= most || most < LEAST_CUT {
        return shown(&whole, most);
    }
    let room = most.saturating_sub(mark.len());
    let head = shown(text, room / 2);
    let (mut tail, room) = (Vec::new(), room.saturating_sub(head.len()));
    let mut taken = 0_usize;
    for c in text.chars().rev() {
        let escaped: String = if c.is_control() { c.escape_default().collect() } else { c.into() };
        taken = taken.saturating_add(escaped.len());
        if taken > room {
            break;
        }
        tail.push(escaped);
    }
    tail.reverse();
    format!("{head}{mark}{}", tail.concat())
}

/// Returns at most `length` characters of a text.
pub fn cut(text: &str, length: usize) -> String {
    match text.char_indices().nth(length.saturating_sub(1)) {
        Some((at, _)) if text.get(at..).is_some_and(|rest| rest.chars().count() > 1) => {
            format!("{}…", text.get(..at).unwrap_or_default())
        }
        _ => text.to_owned(),
    }
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

    #[test]
    fn of_a_message_that_is_too_long_the_middle_goes_and_the_cause_stays() {
        assert_eq!(shown_cause(" a\u{7}b\nc ", 10), "a\\u{7}b\\nc");
        let long = format!("GET {} fails: it is\tdenied", "x".repeat(5_000_000));
        assert_eq!(shown_cause(&long, 30), "GET xxxxxxxxx… it is\\tdenied");
        let accents = shown_cause(&format!("GET {} is answered with 403 Forbidden: no", "é".repeat(300)), 60);
        assert!(accents.starts_with("GET é") && accents.ends_with(" with 403 Forbidden: no"), "{accents}");
        for most in [0, 1, 3, 4, 10, 255] {
            assert!(shown_cause(&"é".repeat(10_000_000), most).len() <= most, "{most}");
        }
        let once = shown_cause(&"0123456789".repeat(90), 256);
        assert_eq!((once.len(), shown_cause(&once, 256)), (256, once.clone()));
    }
}
