//! The page of an OperationJob or an OpsJob, and the story of one of its targets.

use k8s_openapi::jiff::Timestamp;
use maud::{Markup, html};
use oarlock_view::{JobView, Outlook, ReasonPlace, ShownOutput, ShownProgress, TargetView, between};

use crate::address::{ObjectAddress, ObjectKind, PageAddress, PartQuery};
use crate::chart;
use crate::command_lines;
use crate::grid::{Cell, grid};
use crate::login_form::PageRefusal;
use crate::mark::{Bar, Mark};
use crate::object_head::{self, ObjectHead};
use crate::page_content::{Fragment, PageContent};
use crate::part_table::PartTable;
use crate::reason_help::ReasonHelp;
use crate::shown_event::{self, ShownEvent};
use crate::text_html::{Relative, fact, filled, label, line, message, name, point, time};

/// The namespace of the OperationJobs of OpsJobs.
pub(crate) const OPS_NAMESPACE: &str = "oarlock-ops";
/// The first words of the waits that only a person, or other pods of a budget, can end.
const LASTING: [&str; 11] = [
    "Budget",
    "Drain",
    "Failures",
    "Grant",
    "InvalidSpec",
    "KindNotReadable",
    "KindNotServed",
    "NoPlugin",
    "Partition",
    "Paused",
    "Webhook",
];
/// The columns of a detail in a table.
const DETAIL: usize = 300;
/// The most inputs or outputs of one list.
const MOST_VALUES: usize = 100;

/// The values of a page about a job.
#[derive(Clone, Copy, Debug)]
pub struct JobPage<'a> {
    /// The job. An OpsJob and an OperationJob have the same view.
    pub job: &'a JobView,
    /// The events of the job, the newest first.
    pub events: &'a [ShownEvent],
    /// The targets that the table shows.
    pub parts: &'a PartQuery,
    /// The current time. The chart of a job that has not ended goes on until then.
    pub now: Timestamp,
}

impl ObjectAddress {
    /// Returns the address of a job.
    pub fn of_job(job: &JobView) -> Self {
        let kind = if job.is_ops() { ObjectKind::OpsJob } else { ObjectKind::OperationJob };
        Self { kind, namespace: job.namespace.clone(), name: job.name.clone() }
    }
}

/// Returns the page of an OperationJob or an OpsJob.
pub fn job_content(page: &JobPage<'_>) -> PageContent {
    let JobPage { job, events, parts, now } = *page;
    let object = ObjectAddress::of_job(job);
    let help = ReasonHelp::default();
    let table = PartTable {
        object: &object,
        query: parts,
        states: job.targets().iter().map(|target| (Mark::of_target(target), target.state())).collect(),
        by_need: job.by_need().map(|target| target.index).collect(),
        columns: &["Target", "State", "For", "Detail"],
    };
    let mut content = PageContent::new(title(&object, &state(job)))
        .with("head", head(&object, job, &help))
        .with("notices", object_head::notices(&job.notices, job.missing_detail(), object.kind, &help));
    if job.is_ops() {
        content = content.with("inputs", inputs(job)).with("outputs", outputs(job));
    }
    content = content.with("progress", chart::section(job, now));
    if has_known_targets(job) {
        let cell = |target: &TargetView| (Mark::of_target(target), target.state());
        let cells = job.targets().iter().map(|target| {
            let (mark, state) = cell(target);
            Cell { mark, name: &target.name, state }
        });
        let part = object.kind.part();
        let link = |index| PageAddress::Target(object.clone(), index).to_string();
        let tile = |from| format!("{}#parts-title", PageAddress::Object(object.clone(), from_place(from)));
        let mut tiles = grid(&cells.collect::<Vec<_>>(), part, &link, &tile);
        tiles.items.insert(0, table.legend());
        tiles.before = format!("<section class=\"panel\" aria-label=\"Grid of {part}s\">{}", tiles.before);
        tiles.after += "</section>";
        content = content
            .with_list(tiles)
            .with_list(table.rows(&|index| row(&object, job.targets().get(index)?, &help)))
            .with("pager", table.pager());
    }
    if job.is_ops() {
        content = content.with("conditions", object_head::conditions(&job.conditions, object.kind, &help));
    }
    content
        .with("commands", command_lines::section(&command_lines::of_job(job)))
        .with("events", shown_event::section(events, object.kind, &help))
        .with("reasons", help.section())
}

/// Returns true if there is something to say about a target. An OpsJob that ended before it started has targets of which nothing is known.
fn has_known_targets(job: &JobView) -> bool {
    let has_begun = !job.progress.is_terminal() || job.started.is_some();
    job.targets().iter().any(|target| has_begun || target.progress != ShownProgress::Unknown)
}

/// Returns the rows that begin at a place.
pub(crate) fn from_place(from: usize) -> PartQuery {
    PartQuery { state: String::new(), from: Some(from) }
}

/// Returns the title of a page about an object.
pub(crate) fn title(object: &ObjectAddress, state: &str) -> String {
    format!("{}/{}: {}", object.kind.short(), label(&object.name), label(state))
}

/// Returns the progress of a job in words.
pub(crate) fn state(job: &JobView) -> String {
    let notes = [(job.dry_run, " (dry run)"), (job.is_deleting, " (being deleted)")];
    let notes: String = notes.iter().filter(|(is_so, _)| *is_so).map(|(_, note)| *note).collect();
    format!("{}{notes}", job.progress.word())
}

/// Returns true if the job waits for something that does not come by itself.
pub(crate) fn has_lasting_wait(job: &JobView) -> bool {
    let waits = job.waits_for.as_deref().unwrap_or_default().split(", ");
    waits
        .filter_map(|wait| wait.split(' ').next())
        .any(|first| LASTING.iter().any(|word| word.eq_ignore_ascii_case(first)))
}

/// Returns the mark of a job: one that something holds up is blocked.
pub(crate) fn mark(job: &JobView) -> Mark {
    match Mark::of_progress(job.progress) {
        Mark::Waiting | Mark::Running if !job.notices.is_empty() || has_lasting_wait(job) => Mark::Blocked,
        mark => mark,
    }
}

fn head(object: &ObjectAddress, job: &JobView, help: &ReasonHelp) -> Markup {
    let plugin = job.plugin.as_ref().map(|plugin| {
        let digest: String = plugin.digest.chars().take(19).collect();
        html! { (line(&format!("{} {}", plugin.name, plugin.version), 60)) " " span class="muted" title=(plugin.digest.chars().take(100).collect::<String>()) { (line(&digest, 20)) } }
    });
    let bounds = job.bounds.join(", ");
    let facts = html! {
        (fact("Action", filled(&job.action).map(|action| line(action, 60))))
        (fact("Plugin", plugin))
        (fact("Bounds", filled(&bounds).map(|bounds| line(bounds, 160))))
        (fact("Created", job.created.map(|at| time(at, Relative::Ago))))
        (fact("Started", job.started.map(|at| time(at, Relative::Ago))))
        (fact("Ended", job.ended.map(|at| ended(job.started, at))))
        (fact("Rate", rate(job)))
        (fact("Waits for", job.waits_for.as_ref().map(|word| waits(&help.word(object.kind, ReasonPlace::Waits, word), job.waiting.as_deref()))))
        (fact("OperationJob", (job.has_child && !job.progress.is_terminal()).then(|| child(&job.name))))
    };
    ObjectHead { object, mark: mark(job), state: state(job), bar: Bar::of_targets(&job.counts), facts }.html()
}

/// Returns an end time with the duration.
pub(crate) fn ended(started: Option<Timestamp>, at: Timestamp) -> Markup {
    html! { (time(at, Relative::Ago)) @if let Some(took) = between(started, Some(at)) { ", took " (took) } }
}

/// Returns the rate at the last end of a target. It does not depend on the current time.
fn rate(job: &JobView) -> Option<Markup> {
    let last = *job.ends().last()?;
    let sentence = Outlook::new(job, last).sentence();
    (!sentence.is_empty()).then(|| html! { (sentence) " (at the last end, " (time(last, Relative::Ago)) ")" })
}

fn waits(word: &Markup, sentence: Option<&str>) -> Markup {
    html! { strong { (word) } @if let Some(sentence) = sentence { ": " (message(sentence)) } }
}

fn child(name_of_ops: &str) -> Markup {
    let kind = ObjectKind::OperationJob;
    let object = ObjectAddress { kind, namespace: OPS_NAMESPACE.to_owned(), name: name_of_ops.to_owned() };
    html! { a href=(object) { (OPS_NAMESPACE) "/" (name(name_of_ops)) } " " span class="muted" { "while the job runs" } }
}

fn row(object: &ObjectAddress, target: &TargetView, help: &ReasonHelp) -> Option<Fragment> {
    let id = format!("target-{}", target.index);
    let mark = Mark::of_target(target);
    let done: Vec<String> = target.extras_in_words().collect();
    let error = target.error.as_ref();
    let html = html! {
        tr id=(id) {
            th scope="row" { a href=(PageAddress::Target(object.clone(), target.index)) { (name(&target.label())) } }
            td { (mark.with_word(target.state())) }
            td class="number" data-column="For" { (span(target)) }
            td class="wide" {
                @if target.attempt > 1 { "attempt " (target.attempt) @if error.is_some() || !done.is_empty() { "; " } }
                @if let Some(error) = error {
                    (help.word(object.kind, ReasonPlace::Target, &error.reason))
                    @if !error.message.is_empty() { ": " (line(&error.message, DETAIL)) }
                    @if !done.is_empty() { "; " }
                }
                @if !done.is_empty() { (line(&done.join("; "), DETAIL)) }
                @if let Some(next) = target.next_attempt { "; next attempt " (time(next, Relative::Until)) }
            }
        }
    };
    Some(Fragment { id, html: html.into_string() })
}

/// Returns the duration of a target that has ended, or the time since its start.
fn span(target: &TargetView) -> Markup {
    html! {
        @match (target.progress.is_terminal(), target.started) {
            (true, started) => (between(started, target.ended).unwrap_or_default()),
            (false, Some(started)) if target.progress != ShownProgress::Pending => (time(started, Relative::Age)),
            _ => {},
        }
    }
}

fn inputs(job: &JobView) -> Markup {
    html! {
        section id="inputs" class="panel" aria-labelledby="inputs-title" {
            h2 id="inputs-title" { "Inputs" }
            @if job.inputs.is_empty() { p class="muted" { "The job has no inputs." } }
            dl class="values" {
                @for input in job.inputs.iter().take(MOST_VALUES) { div { dt { (name(&input.name)) } dd { (message(&input.value)) } } }
            }
            @if job.inputs.len() > MOST_VALUES { p class="muted" { "The page lists the first " (MOST_VALUES) " of " (job.inputs.len()) " inputs." } }
        }
    }
}

fn outputs(job: &JobView) -> Markup {
    html! {
        section id="outputs" class="panel" aria-labelledby="outputs-title" {
            h2 id="outputs-title" { "Outputs" }
            @if job.outputs.is_empty() { p class="muted" { "The job has no outputs" @if !job.progress.is_terminal() { " yet" } "." } }
            dl class="values" {
                @for output in job.outputs.iter().take(MOST_VALUES) {
                    div { dt { (name(&output.name)) } dd { (output_value(output)) } }
                }
            }
            @if job.outputs.len() > MOST_VALUES { p class="muted" { "The page lists the first " (MOST_VALUES) " of " (job.outputs.len()) " outputs." } }
            @if job.outputs.iter().any(|output| output.value.starts_with("artifact:")) { (command_lines::copyable(&command_lines::artifacts(job))) }
        }
    }
}

/// Returns the value of an output. An address of the web is a link that tells the other site nothing.
fn output_value(output: &ShownOutput) -> Markup {
    let value = output.value.as_str();
    let is_address = (value.starts_with("https://") || value.starts_with("http://"))
        && value.len() <= 2048
        && !value.contains(|c: char| c.is_whitespace() || c.is_control());
    html! {
        @if is_address { a href=(value) rel="noopener noreferrer nofollow" { (line(value, 160)) } }
        @else { (message(value)) }
    }
}

/// Returns the page with the story of one target, or a page that says that the job has no target with this index. `events` are those of
/// the job.
pub fn target_content(job: &JobView, index: usize, events: &[ShownEvent]) -> PageContent {
    let object = ObjectAddress::of_job(job);
    let Some(target) = job.targets().get(index) else { return no_target(&object, job, index) };
    let help = ReasonHelp::default();
    let title = format!("{} of {}", label(&target.label()), title(&object, target.state()));
    let content = PageContent::new(title)
        .with("head", target_head(&object, job, target))
        .with("story", story(job, target, &help))
        .with("detail", extras(target))
        .with("commands", command_lines::section(&command_lines::of_target(job, target)));
    content.with("events", shown_event::of_target(events, &target.name, &object, &help)).with("reasons", help.section())
}

fn no_target(object: &ObjectAddress, job: &JobView, index: usize) -> PageContent {
    let part = object.kind.part();
    let title = format!("No {part} {index}");
    let html = html! {
        section id="refusal" class="panel empty" aria-labelledby="refusal-title" {
            h1 id="refusal-title" { (title) }
            p { (object.kind.word()) " " (name(&object.name)) " has no " (part) " with the index " (index) ". " @match job.targets().len() {
                0 => { "Its " (part) "s are not known yet." },
                1 => { "Its only " (part) " has the index 0." },
                count => { "Its " (count) " " (part) "s have the indexes from 0 to " (count.saturating_sub(1)) "." },
            } }
            p { a href=(object) { "All of the job" } }
        }
    };
    let refusal = PageRefusal::NotFound(title.clone());
    PageContent::new(title).with("refusal", html).refused(refusal)
}

fn target_head(object: &ObjectAddress, job: &JobView, target: &TargetView) -> Markup {
    let neighbour = |index: Option<usize>| index.filter(|index| *index < job.targets().len());
    let link = |index| PageAddress::Target(object.clone(), index).to_string();
    html! {
        header id="head" class="head" {
            (object_head::crumbs(object))
            p class="crumbs" { a href=(object) { (name(&object.name)) } " / " (object.kind.part()) " " (target.index.saturating_add(1)) " of " (job.targets().len()) }
            h1 { (name(&target.label())) " " (Mark::of_target(target).with_word(target.state())) }
            nav class="pager" aria-label="Other targets" {
                @if let Some(before) = neighbour(target.index.checked_sub(1)) { a href=(link(before)) rel="prev" { "Previous" } " " }
                @if let Some(after) = neighbour(target.index.checked_add(1)) { a href=(link(after)) rel="next" { "Next" } }
            }
        }
    }
}

/// Returns what happened to a target, in the order of time. The section is a fragment with the id `story`.
fn story(job: &JobView, target: &TargetView, help: &ReasonHelp) -> Markup {
    let kind = ObjectAddress::of_job(job).kind;
    let done: Vec<String> = target.extras_in_words().collect();
    html! {
        section id="story" class="panel" aria-labelledby="story-title" {
            h2 id="story-title" { "Story" }
            ol class="story" {
                @match target.started {
                    Some(at) => { li { (time(at, Relative::Ago)) " the target started" @if target.attempt > 1 { ", attempt " (target.attempt) } } },
                    None if target.progress == ShownProgress::Unknown && job.is_ops() => { li { "The OpsJob does not say what happened on the " (ObjectAddress::of_job(job).kind.part()) "." } },
                    None if target.progress == ShownProgress::Unknown => { li { "The record of the target was not read." } },
                    // The story of an OpsJob that has ended has only the outcomes.
                    None if target.progress.is_terminal() || target.error.is_some() => { li { "The times of the target are not known." } },
                    None => { li { "The target has not started." @if let Some(word) = &job.waits_for { " The job waits for " (help.word(kind, ReasonPlace::Waits, word)) "." } } },
                }
                @for line_of_record in &done { li { (message(line_of_record)) } }
                @if let Some(error) = &target.error {
                    li class="warning" {
                        @if target.is_blocked() { "It waits: " } @else { "It failed: " }
                        strong { (help.word(kind, ReasonPlace::Target, &error.reason)) } " " (message(&error.message))
                    }
                }
                @if let Some(next) = target.next_attempt { li { "The next attempt starts " (time(next, Relative::Until)) } }
                @if let Some(at) = target.ended { li { (ended(target.started, at)) ": " (target.state()) } }
            }
            @if let Some(sentence) = job.missing_detail() { p class="muted" { (sentence) "." } }
        }
    }
}

/// Returns the stored extras, as they are. The section is a fragment with the id `detail`.
fn extras(target: &TargetView) -> Markup {
    html! {
        section id="detail" class="panel" aria-labelledby="detail-title" {
            h2 id="detail-title" { "As recorded" }
            dl class="values" {
                (fact("started", target.started.map(|at| html! { (point(at)) " UTC" })))
                (fact("ended", target.ended.map(|at| html! { (point(at)) " UTC" })))
                (fact("attempt", Some(html! { (target.attempt) })))
                @for (key, value) in target.extra.iter().take(MOST_VALUES) { div { dt { (name(key)) } dd { (message(value)) } } }
            }
        }
    }
}
