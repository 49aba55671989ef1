//! The list of all kinds: one window of rows, filtered by the address.
//!
//! Objects that need attention come first, then the newest ones. An object needs attention if it failed in the last day, or if a person or a
//! budget has to end its wait. A window has at most [`ROWS`] rows, so that thousands of objects cost a
//! browser nothing.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use oarlock_view::{FlowKind, FlowView, JobView, ReasonPlace, ShownProgress, cut_end, escaped};

use crate::address::{JobQuery, ListState, ObjectAddress, ObjectKind, PageAddress, ROOT};
use crate::command_lines;
use crate::mark::{Bar, Mark};
use crate::page_content::{Fragment, FragmentList, PageContent};
use crate::reason_help::ReasonHelp;
use crate::text_html::{Relative, line, name, time};
use crate::{flow_page, job_page};

/// The most rows of a window.
pub const ROWS: usize = 100;
/// The time for which a failure needs attention.
const RECENT: SignedDuration = SignedDuration::from_hours(24);
/// The time after which a blocked target in flight needs attention.
const SLOW: SignedDuration = SignedDuration::from_mins(5);
/// The columns of a text that a row keeps and shows.
const TEXT: usize = 80;
/// The columns of the table.
const COLUMNS: [&str; 8] = ["Name", "State", "Progress", "Reason", "Age", "Namespace", "Kind", "Action"];

/// One object of a list. A server can keep the rows of all objects, because a row is small, whatever the object has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedJob {
    object: ObjectAddress,
    uid: String,
    action: String,
    mark: Mark,
    /// The mark of the state in words, which has no regard to obstacles.
    progress: Mark,
    state: String,
    bar: Bar,
    /// The wait of the object, or the cause of its failure.
    reason: String,
    reason_place: ReasonPlace,
    /// True if a part has failed, or if a person has to end a wait.
    needs_person: bool,
    /// The start of the first of the blocked targets in flight.
    blocked_since: Option<Timestamp>,
    created: Option<Timestamp>,
    ended: Option<Timestamp>,
}

impl ListedJob {
    /// Returns the row of an OperationJob or an OpsJob. The view needs no records.
    pub fn of_job(job: &JobView) -> Self {
        let notice = job.notices.first().map(|notice| notice.reason.clone());
        let reason_place = if job.waits_for.is_some() { ReasonPlace::Waits } else { ReasonPlace::Condition };
        let blocked = job.targets().iter().filter(|target| {
            target.is_blocked() && target.next_attempt.is_none() && target.progress == ShownProgress::Processing
        });
        let has_ended = job.progress.is_terminal();
        Self {
            object: ObjectAddress::of_job(job),
            uid: job.uid.clone(),
            action: kept(&job.action),
            mark: job_page::mark(job),
            progress: Mark::of_progress(job.progress),
            state: job_page::state(job),
            bar: Bar::of_targets(&job.counts),
            reason: kept(&job.waits_for.clone().or(notice).unwrap_or_default()),
            reason_place,
            needs_person: !has_ended && (job.counts.failed > 0 || job_page::has_lasting_wait(job)),
            blocked_since: blocked.filter_map(|target| target.started).min().filter(|_| !has_ended),
            created: job.created,
            ended: job.ended,
        }
    }

    /// Returns the row of a JobFlow or a DaemonJob. The view needs no records.
    pub fn of_flow(flow: &FlowView) -> Self {
        let notice = flow.notices.first().map(|notice| notice.reason.clone());
        let waiting = if flow.has_ended { String::new() } else { flow.waiting.clone() };
        let action = match flow.kind {
            FlowKind::JobFlow => format!("{} steps", flow.counts.total),
            FlowKind::DaemonJob => format!("{} nodes", flow.counts.total),
        };
        Self {
            object: ObjectAddress::of_flow(flow),
            uid: flow.uid.clone(),
            action,
            mark: flow_page::mark(flow),
            progress: Mark::of_flow(&flow.state),
            state: kept(&flow_page::state(flow)),
            bar: Bar::of_units(&flow.counts),
            reason: kept(&notice.unwrap_or(waiting)),
            reason_place: ReasonPlace::Condition,
            needs_person: !flow.has_ended && flow.counts.failed.saturating_add(flow.counts.blocked) > 0,
            blocked_since: None,
            created: flow.created,
            ended: flow.ended,
        }
    }

    /// Returns the address of the object.
    pub fn object(&self) -> &ObjectAddress {
        &self.object
    }

    fn needs_attention(&self, now: Timestamp) -> bool {
        let is_slow = self.blocked_since.is_some_and(|since| now.duration_since(since) >= SLOW);
        match self.mark {
            Mark::Blocked | Mark::Retrying => true,
            Mark::Failed => self.ended.is_none_or(|ended| now.duration_since(ended) < RECENT),
            _ => self.needs_person || is_slow,
        }
    }

    fn is_in(&self, state: ListState, now: Timestamp) -> bool {
        match state {
            ListState::Attention => self.needs_attention(now),
            ListState::Pending => self.progress == Mark::Waiting,
            ListState::Running => self.progress == Mark::Running,
            ListState::Succeeded => self.progress == Mark::Succeeded,
            ListState::Failed => self.progress == Mark::Failed,
        }
    }

    fn fits(&self, query: &JobQuery, text: &str, now: Timestamp) -> bool {
        let ObjectAddress { kind, namespace, name } = &self.object;
        query.kind.is_none_or(|wanted| wanted == *kind)
            && (query.namespaces.is_empty() || query.namespaces.contains(namespace))
            && query.state.is_none_or(|state| self.is_in(state, now))
            && (text.is_empty() || name.to_lowercase().contains(text) || self.action.to_lowercase().contains(text))
    }

    /// Returns the OpsJob to which an OperationJob belongs.
    fn ops_job(&self) -> Option<ObjectAddress> {
        let ObjectAddress { kind, namespace, name } = &self.object;
        let is_child = *kind == ObjectKind::OperationJob && namespace == job_page::OPS_NAMESPACE;
        is_child.then(|| ObjectAddress { kind: ObjectKind::OpsJob, namespace: String::new(), name: name.clone() })
    }

    fn row(&self, help: &ReasonHelp) -> Fragment {
        // The UID is a text of the cluster, but an id must have no spaces.
        let uid: String = self.uid.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
        let id = format!("row-{}-{uid}", self.object.kind.short());
        let html = html! {
            tr id=(id) {
                th scope="row" { a href=(self.object) { (name(&self.object.name)) } }
                td { (self.mark.with_word(&self.state)) }
                td class="bar-cell" { (self.bar.svg()) }
                td class="wide" { (help.word(self.object.kind, self.reason_place, &self.reason)) }
                td class="number" data-column="Age" { @if let Some(created) = self.created { (time(created, Relative::Age)) } }
                td { (name(&self.object.namespace)) }
                td { (self.object.kind.word()) @if let Some(ops) = self.ops_job() { " of " a href=(ops) { "OpsJob" } } }
                td { (line(&self.action, 40)) }
            }
        };
        Fragment { id, html: html.into_string() }
    }
}

/// Returns as much of a text as a row keeps.
fn kept(text: &str) -> String {
    cut_end(&escaped(text), TEXT).into_owned()
}

/// Returns the page with those `jobs` that fit the query. The caller passes only objects that the viewer may list. `now` decides which
/// failures are recent.
pub fn list_content<'a>(
    jobs: impl IntoIterator<Item = &'a ListedJob>,
    query: &JobQuery,
    now: Timestamp,
) -> PageContent {
    let text = query.text.to_lowercase();
    let (mut all, mut fitting): (usize, Vec<&ListedJob>) = (0, Vec::new());
    for job in jobs {
        all += usize::from(query.kind.is_none_or(|kind| kind == job.object.kind));
        fitting.extend(Some(job).filter(|job| job.fits(query, &text, now)));
    }
    fitting.sort_by_cached_key(|job| {
        let place = (job.object.kind, job.object.namespace.clone(), job.object.name.clone());
        (!job.needs_attention(now), std::cmp::Reverse(job.created), place)
    });
    let skip = query.skip.min(fitting.len());
    let help = ReasonHelp::default();
    let rows: Vec<Fragment> = fitting.iter().skip(skip).take(ROWS).map(|job| job.row(&help)).collect();
    let shown = Window { skip, count: rows.len(), of: fitting.len() };
    let content = PageContent::new(query.kind.map_or_else(|| "Jobs".to_owned(), |kind| format!("{}s", kind.word())))
        .with("filters", filters(query))
        .with("pager", pager(query, shown))
        .with("empty", empty(query, all, fitting.is_empty()));
    let head = html! {
        thead { tr {
            @for column in COLUMNS { th scope="col" { (column) } }
        } }
    };
    let content = content.with_list(FragmentList {
        id: "rows",
        before: format!(
            "<div class=\"scroll list\" tabindex=\"0\" role=\"group\" aria-label=\"List\"><table>{}<tbody id=\"rows\">",
            head.into_string()
        ),
        items: rows,
        after: "</tbody></table></div>".to_owned(),
    });
    content.with("reasons", help.section())
}

fn filters(query: &JobQuery) -> Markup {
    html! {
        div id="filters" {
            h1 { @match query.kind { Some(kind) => { (kind.word()) "s" }, None => "Jobs" } }
            form class="filters" method="get" action=(ROOT) role="search" aria-label="Filters" {
                label { span { "Kind" } select name="kind" {
                    option value="" { "All kinds" }
                    @for kind in ObjectKind::ALL { option value=(kind.short()) selected[query.kind == Some(kind)] { (kind.word()) } }
                } }
                label { span { "Namespaces" } input type="text" name="namespace" value=(query.namespaces.join(",")) placeholder="all, or a, b" autocomplete="off" {} }
                label { span { "State" } select name="state" {
                    option value="" { "All states" }
                    @for state in ListState::ALL { option value=(state.word()) selected[query.state == Some(state)] { (state.word()) } }
                } }
                label { span { "Text" } input type="search" name="q" value=(query.text) placeholder="name or action" autocomplete="off" {} }
                button type="submit" { "Filter" }
                @if *query != JobQuery::default() { a href=(ROOT) { "Clear" } }
            }
        }
    }
}

/// The shown rows among all fitting ones.
#[derive(Clone, Copy)]
struct Window {
    skip: usize,
    count: usize,
    of: usize,
}

fn pager(query: &JobQuery, window: Window) -> Markup {
    let Window { skip, count, of } = window;
    let link = |skip| PageAddress::Jobs(JobQuery { skip, ..query.clone() }).to_string();
    let last = skip.saturating_add(count);
    html! {
        nav id="pager" class="pager" aria-label="Pages" {
            @match of {
                0 => span { "No objects" },
                _ if count == 0 => span { "The list has " (of) " objects and ends before this place." },
                _ => span { (skip.saturating_add(1)) " to " (last) " of " (of) },
            }
            @if skip > 0 { " " a href=(link(skip.saturating_sub(ROWS))) rel="prev" { "Previous " (ROWS) } }
            @if last < of { " " a href=(link(last)) rel="next" { "Next " (ROWS) } }
        }
    }
}

/// Returns the sentence for a list without rows. The element is a fragment with the id `empty`, and is hidden if there are rows.
fn empty(query: &JobQuery, all: usize, is_empty: bool) -> Markup {
    let kinds = query.kind.map_or("job", ObjectKind::word);
    html! {
        section id="empty" class="panel empty" aria-label="No objects" hidden[!is_empty] {
            @if is_empty && all == 0 {
                p { "No " (kinds) " exists in the namespaces that you may see." }
                (command_lines::copyable(&command_lines::first(query.kind)))
            } @else if is_empty {
                p { "No " (kinds) " fits these filters. " (all) " exist without them. " a href=(PageAddress::Jobs(job_query(query.kind))) { "Clear the filters" } }
            }
        }
    }
}

fn job_query(kind: Option<ObjectKind>) -> JobQuery {
    JobQuery { kind, ..JobQuery::default() }
}
