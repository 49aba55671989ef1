//! Texts of a cluster as HTML: names, messages, times and durations.
//!
//! A text may be hostile or long. maud escapes it, `bdi` isolates its direction, and control characters become visible escapes.

use k8s_openapi::jiff::Timestamp;
use maud::{Markup, html};
use oarlock_view::{cut_end, cut_middle, escaped, rfc_3339};

/// The columns of a name in a table, and of a name in a heading.
const NAME: usize = 64;
/// The characters of a message that are shown at once.
const SHOWN: usize = 350;
/// The characters of a message that a page has. A longer message is cut.
const MOST: usize = 65_536;
/// The characters of a title, which a browser shows beside the pointer.
const TITLE: usize = 300;

/// Returns a name, cut in its middle if it is long. The title then has the whole name.
pub(crate) fn name(text: &str) -> Markup {
    let whole = escaped(text);
    let cut = cut_middle(&whole, NAME);
    let title = (cut != whole).then(|| cut_end(&whole, TITLE));
    html! { bdi title=[title] { (cut) } }
}

/// Returns a name as text without elements, for a drawing or an attribute.
pub(crate) fn label(text: &str) -> String {
    cut_middle(&escaped(text), NAME).into_owned()
}

/// Returns a text in one line, cut at its end after `width` columns. The page of the object has the whole text.
pub(crate) fn line(text: &str, width: usize) -> Markup {
    let whole = escaped(text);
    let cut = cut_end(&whole, width);
    let title = (cut != whole).then(|| cut_end(&whole, TITLE));
    html! { bdi title=[title] { (cut) } }
}

/// Returns a message with all of its lines. A long message shows its beginning, and the reader opens the rest.
pub(crate) fn message(text: &str) -> Markup {
    let lines: Vec<_> = text.lines().map(escaped).collect();
    let whole = lines.join("\n");
    if whole.chars().count() <= SHOWN && lines.len() <= 4 {
        return html! { bdi class="message" { (whole) } };
    }
    let first = lines.first().map(|first| first.as_ref()).unwrap_or_default();
    let is_cut = whole.chars().count() > MOST;
    html! {
        details class="long" {
            summary { bdi { (cut_end(first, SHOWN)) } " " span class="muted" { "(" (whole.chars().count()) " characters)" } }
            pre tabindex="0" { bdi { (whole.chars().take(MOST).collect::<String>()) } }
            @if is_cut { p class="muted" { "The page shows the first " (MOST) " characters." } }
        }
    }
}

/// The words that the script puts in place of a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Relative {
    /// The time since then, such as `4m`.
    Age,
    /// The time since then with `ago`, such as `4m ago`.
    Ago,
    /// The time until then, such as `in 30s`.
    Until,
}

/// Returns a time. The script replaces the text by an age, which no fragment has, so that time alone changes no fragment.
pub(crate) fn time(time: Timestamp, relative: Relative) -> Markup {
    let stored = rfc_3339(time);
    let word = match relative {
        Relative::Age => "age",
        Relative::Ago => "ago",
        Relative::Until => "until",
    };
    html! { time datetime=(stored) data-is=(word) title=(stored) { (point(time)) } }
}

/// Returns a point in time that stays as it is, such as `2026-07-01 10:00:00`. All times are UTC.
pub(crate) fn point(time: Timestamp) -> String {
    rfc_3339(time).replace('T', " ").trim_end_matches('Z').to_owned()
}

/// Returns a row of a list of facts, or nothing if there is no value.
pub(crate) fn fact(term: &str, value: Option<Markup>) -> Markup {
    html! { @if let Some(value) = value { div { dt { (term) } dd { (value) } } } }
}

/// Returns the value if it has text.
pub(crate) fn filled(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_escaped_isolated_and_visible() {
        let html = name("<img src=x onerror=alert(1)>\u{202e}\u{1b}[2J\"'&").into_string();
        assert_eq!(html, "<bdi>&lt;img src=x onerror=alert(1)&gt;\\u{202e}\\u{1b}[2J&quot;'&amp;</bdi>");
    }

    #[test]
    fn a_long_name_is_cut_in_its_middle_and_the_title_has_the_rest() {
        let html = name(&"x".repeat(253)).into_string();
        assert!(html.starts_with("<bdi title=\"xxx") && html.contains('…') && html.len() < 400, "{html}");
    }

    #[test]
    fn a_long_message_can_be_opened_and_a_huge_one_is_cut() {
        assert_eq!(message("a\nb").into_string(), "<bdi class=\"message\">a\nb</bdi>");
        let html = message(&"y".repeat(70_000)).into_string();
        assert!(html.contains("<summary>") && html.contains("the first 65536 characters") && html.len() < 67_000);
    }
}
