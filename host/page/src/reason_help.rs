//! The meaning of each shown reason, and the next step: one text for each reason of a page, which the reader opens at the word.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use maud::{Markup, html};
use oarlock_view::{ReasonEntry, ReasonKind, ReasonPlace, entries_of_reason, reason_entries};

use crate::address::ObjectKind;
use crate::text_html::line;

/// The most texts of a page.
const MOST: usize = 40;
/// The columns of a reason.
const WORD: usize = 120;

static CATALOGUE: LazyLock<Vec<ReasonEntry>> = LazyLock::new(|| reason_entries().unwrap_or_default());

/// The texts that a page needs. Each shown reason asks for its text, and the page ends with all of them.
#[derive(Debug, Default)]
pub(crate) struct ReasonHelp {
    /// The places of the texts in the catalogue.
    shown: RefCell<BTreeSet<usize>>,
}

impl ReasonHelp {
    /// Returns a reason as a button that opens its text. A reason of elsewhere, such as one of a plugin, has no text and is no button.
    pub(crate) fn word(&self, kind: ObjectKind, place: ReasonPlace, text: &str) -> Markup {
        let found = entry(kind, place, text).filter(|at| self.has_room_for(*at));
        html! {
            @if let Some(at) = found { button type="button" class="why" popovertarget={ "why-" (at) } { (line(text, WORD)) } }
            @else { (line(text, WORD)) }
        }
    }

    fn has_room_for(&self, at: usize) -> bool {
        let mut shown = self.shown.borrow_mut();
        shown.contains(&at) || shown.len() < MOST && shown.insert(at)
    }

    /// Returns all texts that the page has asked for. The section is a fragment with the id `reasons`.
    pub(crate) fn section(&self) -> Markup {
        html! {
            section id="reasons" class="reasons" aria-label="Reasons" {
                @for at in &*self.shown.borrow() {
                    @if let Some(entry) = CATALOGUE.get(*at) {
                        div id={ "why-" (at) } class="panel" popover {
                            h2 { (entry.reason) }
                            p { (with_code(&entry.is)) }
                            p { strong { "Do: " } (with_code(&entry.next)) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the place of the text of a reason in the catalogue.
fn entry(kind: ObjectKind, place: ReasonPlace, text: &str) -> Option<usize> {
    let kind = match kind {
        ObjectKind::OperationJob => ReasonKind::OperationJob,
        ObjectKind::JobFlow => ReasonKind::JobFlow,
        ObjectKind::DaemonJob => ReasonKind::DaemonJob,
        ObjectKind::OpsJob => ReasonKind::OpsJob,
    };
    // The conditions of an OpsJob also have reasons of its phases and of its targets.
    let more: &[ReasonPlace] = match (kind, place) {
        (ReasonKind::OpsJob, ReasonPlace::Condition) => &[ReasonPlace::Phase, ReasonPlace::Target],
        _ => &[],
    };
    let meanings = entries_of_reason(&CATALOGUE, text);
    let at = |place| meanings.iter().find(|entry| entry.kinds.contains(&kind) && entry.place == place);
    let found = std::iter::once(place).chain(more.iter().copied()).find_map(at)?;
    CATALOGUE.iter().position(|entry| std::ptr::eq(entry, *found))
}

/// Returns a text whose parts between backticks are code.
fn with_code(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_each_text_once_and_a_foreign_reason_has_none() {
        let help = ReasonHelp::default();
        for budget in ["Budget web", "Budget db", "Budget web"] {
            let html = help.word(ObjectKind::OperationJob, ReasonPlace::Waits, budget).into_string();
            assert!(html.contains("popovertarget=\"why-") && html.contains(budget), "{html}");
        }
        let html = help.word(ObjectKind::OperationJob, ReasonPlace::Target, "<b>Boom").into_string();
        assert_eq!(html, "<bdi>&lt;b&gt;Boom</bdi>");
        let texts = help.section().into_string();
        assert_eq!(texts.matches(" popover>").count(), 1, "{texts}");
        assert!(texts.contains("<strong>Do: </strong>Make the other pods of the budget Ready"), "{texts}");
    }

    #[test]
    fn a_word_with_several_meanings_opens_the_one_of_its_kind_and_place() {
        let text = |kind, place, word| entry(kind, place, word).map(|at| CATALOGUE[at].is.as_str());
        let step = text(ObjectKind::JobFlow, ReasonPlace::Step, "DeadlineExceeded");
        let target = text(ObjectKind::OperationJob, ReasonPlace::Target, "DeadlineExceeded");
        assert!(step.is_some() && target.is_some() && step != target, "{step:?} {target:?}");
        assert_eq!(text(ObjectKind::JobFlow, ReasonPlace::Waits, "Budget web"), None);
        let of_node = text(ObjectKind::OpsJob, ReasonPlace::Condition, "NotReady");
        assert!(of_node.is_some(), "a condition of an OpsJob can be the error of a node");
    }

    #[test]
    fn the_texts_of_a_page_are_bounded_and_a_reason_beyond_is_no_button() {
        let help = ReasonHelp::default();
        let words = || CATALOGUE.iter().filter(|entry| entry.place == ReasonPlace::Target);
        for entry in words() {
            let html = help.word(ObjectKind::OperationJob, ReasonPlace::Target, &entry.reason).into_string();
            let id = html.split_once("popovertarget=\"").map(|(_, rest)| rest.split('"').next().unwrap());
            assert!(id.is_none_or(|id| help.section().into_string().contains(&format!("id=\"{id}\""))), "{html}");
        }
        assert!(words().count() > MOST);
        assert_eq!(help.section().into_string().matches(" popover>").count(), MOST);
    }
}
