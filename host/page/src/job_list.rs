//! The list of all kinds: one window of rows, filtered by the address.
//!
//! Objects that need attention come first, then the newest ones. A window has at most [`ROWS`] rows, so that thousands of objects cost a
//! browser nothing.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use oarlock_view::{FlowKind, FlowView, JobView, cut_end, escaped};

use crate::address::{JobQuery, ListState, ObjectAddress, ObjectKind, PageAddress, ROOT};
use crate::command_lines;
use crate::mark::{Bar, Mark};
use crate::page_content::{Fragment, FragmentList, PageContent};
use crate::text_html::{Relative, line, name, time};
use crate::{flow_page, job_page};

/// The most rows of a window.
pub const ROWS: usize = 100;
/// The time for which a failure needs attention.
const RECENT: SignedDuration = SignedDuration::from_hours(24);
/// The columns of a text that a row keeps and shows.
const TEXT: usize = 80;

/// One object of a list. A server can keep the rows of all objects, because a row is small, whatever the object has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedJob {
    object: ObjectAddress,
    uid: String,
    action: String,
    mark: Mark,
    state: String,
    bar: Bar,
    waits_for: String,
    created: Option<Timestamp>,
    ended: Option<Timestamp>,
}

impl ListedJob {
    /// Returns the row of an OperationJob or an OpsJob. The view needs no records.
    pub fn of_job(job: &JobView) -> Self {
        let waits_for = job.waits_for.clone().or_else(|| job.notices.first().map(|notice| notice.reason.clone()));
        Self {
            object: ObjectAddress::of_job(job),
            uid: job.uid.clone(),
            action: kept(&job.action),
            mark: job_page::mark(job),
            state: job_page::state(job),
            bar: Bar::of_targets(&job.counts),
            waits_for: kept(&waits_for.unwrap_or_default()),
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
            state: kept(&flow_page::state(flow)),
            bar: Bar::of_units(&flow.counts),
            waits_for: kept(&notice.unwrap_or(waiting)),
            created: flow.created,
            ended: flow.ended,
        }
    }

    /// Returns the address of the object.
    pub fn object(&self) -> &ObjectAddress {
        &self.object
    }

    fn needs_attention(&self, now: Timestamp) -> bool {
        match self.mark {
            Mark::Blocked | Mark::Retrying => true,
            Mark::Failed => self.ended.is_none_or(|ended| now.duration_since(ended) < RECENT),
            _ => false,
        }
    }

    fn is_in(&self, state: ListState, now: Timestamp) -> bool {
        match state {
            ListState::Attention => self.needs_attention(now),
            ListState::Pending => self.mark == Mark::Waiting,
            ListState::Running => matches!(self.mark, Mark::Running | Mark::Blocked | Mark::Retrying),
            ListState::Succeeded => self.mark == Mark::Succeeded,
            ListState::Failed => self.mark == Mark::Failed,
        }
    }

    fn fits(&self, query: &JobQuery, text: &str, now: Timestamp) -> bool {
        let ObjectAddress { kind, namespace, name } = &self.object;
        query.kind.is_none_or(|wanted| wanted == *kind)
            && (query.namespaces.is_empty() || query.namespaces.contains(namespace))
            && query.state.is_none_or(|state| self.is_in(state, now))
            && (text.is_empty() || name.to_lowercase().contains(text) || self.action.to_lowercase().contains(text))
    }

    fn row(&self) -> Fragment {
        // The UID is a text of the cluster, but an id must have no spaces.
        let uid: String = self.uid.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
        let id = format!("row-{}-{uid}", self.object.kind.short());
        let html = html! {
            tr id=(id) {
                th scope="row" { a href=(self.object) { (name(&self.object.name)) } }
                td { (self.mark.with_word(&self.state)) }
                td class="bar-cell" { (self.bar.svg()) }
                td class="wide" { (line(&self.waits_for, TEXT)) }
                td class="number" { @if let Some(created) = self.created { (time(created, Relative::Age)) } }
                td { (name(&self.object.namespace)) }
                td { (self.object.kind.word()) }
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
    let rows: Vec<Fragment> = fitting.iter().skip(skip).take(ROWS).map(|job| job.row()).collect();
    let shown = Window { skip, count: rows.len(), of: fitting.len() };
    let content = PageContent::new(query.kind.map_or_else(|| "Jobs".to_owned(), |kind| format!("{}s", kind.word())))
        .with("filters", filters(query))
        .with("pager", pager(query, shown))
        .with("empty", empty(query, all, fitting.is_empty()));
    let head = html! {
        thead { tr {
            @for column in ["Name", "State", "Progress", "Waits for", "Age", "Namespace", "Kind", "Action"] { th scope="col" { (column) } }
        } }
    };
    content.with_list(FragmentList {
        id: "rows",
        before: format!(
            "<div class=\"scroll list\" tabindex=\"0\" role=\"group\" aria-label=\"List\"><table>{}<tbody id=\"rows\">",
            head.into_string()
        ),
        items: rows,
        after: "</tbody></table></div>".to_owned(),
    })
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
                label { span { "Namespaces" } input type="text" name="namespace" value=(query.namespaces.join(",")) placeholder="all" autocomplete="off" {} }
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
