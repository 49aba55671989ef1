//! The end of the log of a failed Job: the part of a table that opens it, and its page.

use maud::{Markup, html};
use oarlock_view::escaped;

use crate::address::{LogAddress, PageAddress, PartQuery};
use crate::command_lines;
use crate::page_content::PageContent;
use crate::text_html::{label, message, name};

/// The spaces in place of a tab.
const TAB: &str = "    ";

/// The end of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownLog {
    /// The name of the pod.
    pub pod: String,
    /// The name of the container.
    pub container: String,
    /// The end of the container in words, such as `exited with code 1 (Error)`. Empty if it has not ended.
    pub end: String,
    /// The bytes of the last lines, as the container wrote them.
    pub bytes: Vec<u8>,
    /// True if only the last bytes of these lines are here.
    pub is_cut: bool,
}

/// Returns the element that opens the log. With the script, it loads the log in place. Otherwise its link opens the page of the log.
pub(crate) fn opener(address: &LogAddress) -> Markup {
    html! {
        details class="more" data-log=(address) {
            summary { "Log" }
            div class="answer" { a href=(address) { "Open the last lines of its log" } }
        }
    }
}

/// Returns the page with the log of a failed Job, or with the reason why there is none.
pub fn log_content(address: &LogAddress, log: Result<&ShownLog, &str>) -> PageContent {
    let LogAddress { object, job } = address;
    let html = html! {
        section id="log" class="panel" aria-labelledby="log-title" {
            p { a href=(PageAddress::Object(object.clone(), PartQuery::default())) { (object.kind.word()) " " (name(&object.name)) } }
            h1 id="log-title" { "Log of the Job " (name(job)) }
            // The script puts this part into the page of the object.
            div class="answer" {
                @match log {
                    Err(why) => p class="notice" { "There is no log to show. " (message(why)) },
                    Ok(log) => (text(address, log)),
                }
            }
        }
    };
    PageContent::new(format!("Log of {}", label(job))).with("log", html)
}

fn text(address: &LogAddress, log: &ShownLog) -> Markup {
    let ShownLog { pod, container, end, bytes, is_cut } = log;
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<String> = text.lines().map(|line| escaped(&line.replace('\t', TAB)).into_owned()).collect();
    html! {
        p class="muted" {
            "The last lines of the container " (name(container)) " in the pod " (name(pod))
            @if !end.is_empty() { ", which " (end) }
            @if *is_cut { ". Their beginning is left out" }
            ":"
        }
        @if lines.is_empty() { p { "The container wrote nothing." } }
        @else { pre class="log" tabindex="0" aria-label="Log" role="group" { bdi { (lines.join("\n")) } } }
        (command_lines::copyable(&command_lines::whole_log(&address.object.namespace, log)))
    }
}
