//! The head of an object's page: where it is, its state, its bar, and the conditions that a person should read.

use maud::{Markup, html};
use oarlock_view::{Notice, ReasonPlace};

use crate::address::{JobQuery, ObjectAddress, ObjectKind, PageAddress};
use crate::mark::{Bar, Mark};
use crate::reason_help::ReasonHelp;
use crate::text_html::{line, message, name};

/// The most conditions of one list.
const MOST: usize = 100;
/// The end of the message of an OperationJob that failed. On its page, the errors stand below.
const ELSEWHERE: &str = "; see the errors in status.targetDetails or the OperationRecords";

/// The head of a page.
pub(crate) struct ObjectHead<'a> {
    pub(crate) object: &'a ObjectAddress,
    pub(crate) mark: Mark,
    /// The state in words.
    pub(crate) state: String,
    pub(crate) bar: Bar,
    /// The rows of the list of facts.
    pub(crate) facts: Markup,
}

impl ObjectHead<'_> {
    /// Returns the head, a fragment with the id `head`.
    pub(crate) fn html(&self) -> Markup {
        html! {
            header id="head" class="head" {
                (crumbs(self.object))
                h1 { (name(&self.object.name)) " " (self.mark.with_word(&self.state)) }
                div class="progress" { (self.bar.svg()) span { (self.bar.text()) } }
                dl class="facts" { (self.facts) }
            }
        }
    }
}

/// Returns the links to the lists that contain an object.
pub(crate) fn crumbs(object: &ObjectAddress) -> Markup {
    let query = JobQuery { kind: Some(object.kind), ..JobQuery::default() };
    let of_kind = PageAddress::Jobs(query.clone()).to_string();
    let of_namespace = PageAddress::Jobs(JobQuery { namespaces: vec![object.namespace.clone()], ..query }).to_string();
    html! {
        nav class="crumbs" aria-label="Lists" {
            a href=(of_kind) { (object.kind.word()) "s" }
            @if object.kind != ObjectKind::OpsJob { " / " a href=(of_namespace) { (name(&object.namespace)) } }
        }
    }
}

/// Returns the section with the conditions that a person should read, and sentences about missing detail. The section is a fragment with
/// the id `notices`, and is empty if there is nothing to say.
pub(crate) fn notices(notices: &[Notice], missing: Option<String>, kind: ObjectKind, help: &ReasonHelp) -> Markup {
    html! {
        section id="notices" aria-label="Notices" hidden[notices.is_empty() && missing.is_none()] {
            @for notice in notices.iter().take(MOST) {
                div class="notice" {
                    strong { (help.word(kind, ReasonPlace::Condition, &notice.reason)) }
                    @if let Some(words) = condition_words(notice) { " " span class="muted" { (line(&words, 80)) } }
                    div { (message(notice.message.strip_suffix(ELSEWHERE).unwrap_or(&notice.message))) }
                }
            }
            @if let Some(sentence) = missing { div class="notice" { (sentence) "." } }
        }
    }
}

/// Returns the condition in words. The head of the page says itself that an object failed.
fn condition_words(notice: &Notice) -> Option<String> {
    match (notice.condition.as_str(), notice.status.as_str()) {
        ("Failed", "True") => None,
        (condition, "True") => Some(condition.to_owned()),
        (condition, status) => Some(format!("{condition} is {status}")),
    }
}

/// Returns the section with all conditions, a fragment with the id `conditions`.
pub(crate) fn conditions(all: &[Notice], kind: ObjectKind, help: &ReasonHelp) -> Markup {
    html! {
        section id="conditions" class="panel" aria-labelledby="conditions-title" {
            h2 id="conditions-title" { "Conditions" }
            @if all.is_empty() { p class="muted" { "The host has written no condition." } }
            @else {
                div class="scroll" tabindex="0" role="group" aria-labelledby="conditions-title" {
                    table {
                        thead { tr { th scope="col" { "Type" } th scope="col" { "Status" } th scope="col" { "Reason" } th scope="col" { "Message" } } }
                        tbody {
                            @for one in all.iter().take(MOST) {
                                tr {
                                    th scope="row" { (name(&one.condition)) }
                                    td { (line(&one.status, 20)) }
                                    td { (help.word(kind, ReasonPlace::Condition, &one.reason)) }
                                    td class="wide" { (message(&one.message)) }
                                }
                            }
                        }
                    }
                }
                @if all.len() > MOST { p class="muted" { "The page lists the first " (MOST) " of " (all.len()) " conditions." } }
            }
        }
    }
}
