//! Makes text of a cluster fit for a terminal: escapes, cuts and wraps it.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Returns true for characters that a terminal acts on, or that change the order of the shown text.
pub(crate) fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Returns `text` with control and direction characters as escapes. Names and messages of a cluster may contain any character.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unprintable(c) { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    Cow::Owned(clean)
}

/// Returns `text` in `width` columns, with an ellipsis if the text is longer.
pub fn cut_end(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", head_of(text, width.saturating_sub(1))).chars().take(width).collect())
}

/// Returns `text` in `width` columns, without its middle if the text is longer, because names of pods differ at their ends.
pub fn cut_middle(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width || width < 5 {
        return cut_end(text, width);
    }
    let tail_width = (width - 1) * 2 / 3;
    let reversed: String = text.chars().rev().collect();
    let tail: String = head_of(&reversed, tail_width).chars().rev().collect();
    Cow::Owned(format!("{}…{tail}", head_of(text, width - 1 - tail_width)))
}

/// Returns the first characters of `text` that fit into `width` columns.
fn head_of(text: &str, width: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > width
    });
    end.map_or(text, |(at, _)| text.get(..at).unwrap_or(text))
}

/// Returns `text` in at most `most` lines of `width` columns, broken at spaces if possible.
pub(crate) fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() && width > 0 && lines.len() < most {
        if lines.len() + 1 == most {
            lines.push(cut_end(rest, width).into_owned());
            break;
        }
        let fits = head_of(rest, width);
        let whole = fits.len() == rest.len() || rest.get(fits.len()..).is_some_and(|next| next.starts_with(' '));
        let line = if whole { fits } else { fits.rsplit_once(' ').map_or(fits, |(before, _)| before) };
        // A character that is wider than the line would never be consumed.
        let line = if line.is_empty() { rest } else { line };
        lines.push(cut_end(line.trim_end(), width).into_owned());
        rest = rest.get(line.len()..).unwrap_or_default().trim_start();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_escaped() {
        assert_eq!(escaped("a\u{1b}[2J\u{9b}b\n\u{202e}c"), "a\\u{1b}[2J\\u{9b}b\\n\\u{202e}c");
        assert!(matches!(escaped("web-7d9f, größer, 漢"), Cow::Borrowed(_)));
    }

    #[test]
    fn cut_text_fits_its_width_also_where_characters_are_wide() {
        assert_eq!(cut_end("abcdef", 4), "abc…");
        assert_eq!(cut_middle("web-7d9f8c6b5-x2x8k", 12), "web-…5-x2x8k");
        for width in 0..12 {
            assert!(cut_middle("漢字漢字漢字漢字", width).width() <= width);
            assert!(wrapped("漢字 漢字漢字漢字", width, 3).iter().all(|line| line.width() <= width));
        }
    }

    #[test]
    fn wrapped_text_breaks_at_spaces_and_says_where_it_was_cut() {
        assert_eq!(wrapped("one two three four", 9, 3), ["one two", "three", "four"]);
        assert_eq!(wrapped("one two three four", 9, 2), ["one two", "three fo…"]);
        assert_eq!(wrapped("unbreakable", 4, 9), ["unbr", "eaka", "ble"]);
        assert!(wrapped("", 4, 9).is_empty());
    }
}
