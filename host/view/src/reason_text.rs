//! Reasons as text for a terminal, and as the page docs/reasons.md.

use std::fmt::Write as _;

use crate::plain::text_table;
use crate::reason_entry::ReasonEntry;

/// The text above the reasons on the page.
const PAGE_HEAD: &str = "\
# Reasons

Each word below is a reason that Oarlock shows: in a condition, in the error of a target, in an event, or in the answer of a command.
`oarlock explain REASON` prints the same text. One word can have several meanings: the kind and the place tell them apart.

A reason that is not on this page comes from elsewhere: from the plugin of the action, or from the Job or pod of a step.
Its message and the documentation of its source explain it.

<!-- This page is generated from host/view/reasons.yaml. A test of the crate oarlock-view fails if it is not up to date. -->
";

/// Returns all meanings of one or several words, for a terminal.
pub fn reasons_text(entries: &[&ReasonEntry]) -> String {
    let mut text = String::new();
    for (index, entry) in entries.iter().enumerate() {
        let ReasonEntry { reason, place, is, next, .. } = entry;
        let gap = if index == 0 { "" } else { "\n" };
        let (kinds, words, field) = (entry.kind_names(), place.words(), place.field());
        let _always = writeln!(text, "{gap}{reason}: {words} ({kinds}; {field})\n  Means:  {is}\n  Do:     {next}");
    }
    text
}

/// Returns a table of words with their kinds and places.
pub fn reason_list(entries: &[&ReasonEntry]) -> String {
    let row = |entry: &&ReasonEntry| vec![entry.reason.clone(), entry.kind_names(), entry.place.words().to_owned()];
    text_table(&["REASON", "KINDS", "SHOWN AS"], entries.iter().map(row))
}

/// Returns the page of all reasons, as Markdown.
pub fn reasons_page(entries: &[ReasonEntry]) -> String {
    let mut page = PAGE_HEAD.to_owned();
    let mut before = "";
    for entry in entries {
        let ReasonEntry { reason, place, is, next, .. } = entry;
        if reason != before {
            let _always = writeln!(page, "\n## `{reason}`\n");
        }
        before = reason;
        let (kinds, words, field) = (entry.kind_names(), place.words(), place.field());
        let _always = writeln!(page, "- **{kinds}**, {words} (`{field}`): {is}\n  **Do:** {next}");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason_entry::{entries_of_reason, reason_entries};

    #[test]
    fn the_page_of_reasons_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reasons.md");
        let page = reasons_page(&reason_entries().unwrap());
        if std::env::var_os("OARLOCK_WRITE_GOLDEN").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == page,
            "docs/reasons.md differs: run this test with OARLOCK_WRITE_GOLDEN=1, and commit the file"
        );
    }

    #[test]
    fn a_reason_is_shown_with_its_kinds_its_field_its_meaning_and_the_next_step() {
        let entries = reason_entries().unwrap();
        let text = reasons_text(&entries_of_reason(&entries, "BrokenLink"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "BrokenLink: reason of a plugin file (Plugin; oarlock plugin vet)");
        assert!(lines[1].starts_with("  Means:  ") && lines[2].starts_with("  Do:     ") && lines.len() == 3, "{text}");
    }
}
