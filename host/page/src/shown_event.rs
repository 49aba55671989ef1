//! The events of an object, as its page lists them.

use k8s_openapi::jiff::Timestamp;
use maud::{Markup, html};
use oarlock_view::ReasonPlace;

use crate::address::{ObjectAddress, ObjectKind};
use crate::reason_help::ReasonHelp;
use crate::text_html::{Relative, message, time};

/// The most events that a page lists.
const MOST: usize = 30;

/// An event that the cluster has about an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownEvent {
    /// The time of the last occurrence.
    pub time: Option<Timestamp>,
    /// True for an event of type `Warning`.
    pub is_warning: bool,
    /// A CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// The number of occurrences.
    pub count: u32,
}

/// Returns the section with the events. The section is a fragment with the id `events`. The caller gives the newest events first.
pub(crate) fn section(events: &[ShownEvent], kind: ObjectKind, help: &ReasonHelp) -> Markup {
    html! {
        section id="events" class="panel" aria-labelledby="events-title" {
            h2 id="events-title" { "Events" }
            @if events.is_empty() { p class="muted" { "The cluster has no events, or you may not read them. Events stay for an hour." } }
            @else { (listed(events, kind, help)) }
        }
    }
}

/// Returns the section with those events of a job that name a target, and a link to all events of the job.
pub(crate) fn of_target(events: &[ShownEvent], target: &str, object: &ObjectAddress, help: &ReasonHelp) -> Markup {
    let own: Vec<ShownEvent> = events.iter().filter(|event| names(&event.message, target)).cloned().collect();
    html! {
        section id="events" class="panel" aria-labelledby="events-title" {
            h2 id="events-title" { "Events" }
            @if own.is_empty() { p class="muted" { "No event of the job names this " (object.kind.part()) "." } }
            @else { (listed(&own, object.kind, help)) }
            @if events.len() > own.len() { p { a href={ (object) "#events" } { "All events of the job" } } }
        }
    }
}

/// Returns true if a message has a name, and not only as a part of a longer name.
fn names(message: &str, name: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '-' || c == '.';
    let is_whole = |at: usize| {
        let before = message.get(..at).and_then(|before| before.chars().next_back());
        let mut after = message.get(at.saturating_add(name.len())..).unwrap_or_default().chars();
        // A full stop or a colon may follow the name.
        let after = (after.next(), after.next());
        !before.is_some_and(is_of_name)
            && match after {
                (Some('.'), next) => !next.is_some_and(is_of_name),
                (next, _) => !next.is_some_and(is_of_name),
            }
    };
    !name.is_empty() && message.match_indices(name).any(|(at, _)| is_whole(at))
}

fn listed(events: &[ShownEvent], kind: ObjectKind, help: &ReasonHelp) -> Markup {
    html! {
        ol class="story" {
            @for event in events.iter().take(MOST) {
                li class=[event.is_warning.then_some("warning")] {
                    @if let Some(at) = event.time { (time(at, Relative::Ago)) " " }
                    strong { (help.word(kind, ReasonPlace::Event, &event.reason)) }
                    @if event.count > 1 { " " span class="muted" { (event.count) " times" } }
                    " " (message(&event.message))
                }
            }
        }
        @if events.len() > MOST { p class="muted" { "The page lists the newest " (MOST) " events." } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_a_target_only_by_its_whole_name() {
        for (message, is_named) in [
            ("node-1: NotReady: it stays down", true),
            ("the host cordoned node-1.", true),
            ("node-10: NotReady", false),
            ("my-node-1 and node-1.example are others", false),
            ("", false),
        ] {
            assert_eq!(names(message, "node-1"), is_named, "{message}");
        }
        assert!(!names("a", ""));
    }
}
