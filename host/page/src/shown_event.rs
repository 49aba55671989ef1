//! The events of an object, as its page lists them.

use k8s_openapi::jiff::Timestamp;
use maud::{Markup, html};

use crate::text_html::{Relative, line, message, time};

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
pub(crate) fn section(events: &[ShownEvent]) -> Markup {
    html! {
        section id="events" class="panel" aria-labelledby="events-title" {
            h2 id="events-title" { "Events" }
            @if events.is_empty() { p class="muted" { "The cluster has no events, or you may not read them. Events stay for an hour." } }
            @else {
                ol class="story" {
                    @for event in events.iter().take(MOST) {
                        li class=[event.is_warning.then_some("warning")] {
                            @if let Some(at) = event.time { (time(at, Relative::Ago)) " " }
                            strong { (line(&event.reason, 60)) }
                            @if event.count > 1 { " " span class="muted" { (event.count) " times" } }
                            " " (message(&event.message))
                        }
                    }
                }
                @if events.len() > MOST { p class="muted" { "The page lists the newest " (MOST) " events." } }
            }
        }
    }
}
