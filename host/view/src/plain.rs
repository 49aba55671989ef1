//! Jobs as plain text, for the scrollback of a terminal, for a pipe and for a log.

use comfy_table::{Table, presets};
use k8s_openapi::jiff::Timestamp;

use crate::changes::ViewChange;
use crate::job_view::JobView;
use crate::ops_view::ShownOutput;
use crate::outlook::Outlook;
use crate::shown_text::{cut_end, escaped};
use crate::span_text::{between, rfc_3339};
use crate::target_view::TargetView;

/// The number of targets of a job that are shown, unless the user requests all.
const FIRST_ROWS: usize = 20;
/// The columns of an output, unless the user requests everything.
const OUTPUT_COLUMNS: usize = 200;

/// The columns of a list of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListColumns {
    /// True to show the namespace of each job.
    pub namespace: bool,
    /// True to also show plugin, duration, rate and bounds.
    pub wide: bool,
}

/// The rows of the table of a job's targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetRows {
    /// The first rows. Targets that need attention come first.
    First,
    /// All targets, in the order of the job's list.
    All,
}

/// Returns a table of jobs.
pub fn job_list(jobs: &[JobView], columns: ListColumns, now: Timestamp) -> String {
    let mut header = vec!["NAME", "ACTION", "PROGRESS", "DONE", "FAILED", "IN FLIGHT", "WAITS FOR", "AGE"];
    if columns.namespace {
        header.insert(0, "NAMESPACE");
    }
    if columns.wide {
        header.extend(["PLUGIN", "TOOK", "RATE", "BOUNDS"]);
    }
    text_table(&header, jobs.iter().map(|job| list_row(job, columns, now)))
}

fn list_row(job: &JobView, columns: ListColumns, now: Timestamp) -> Vec<String> {
    let mut row = vec![
        job.name.clone(),
        job.action.clone(),
        progress(job),
        format!("{}/{}", job.counts.ended(), job.counts.total),
        job.counts.failed.to_string(),
        job.counts.in_flight.to_string(),
        job.waits_for.clone().unwrap_or_default(),
        between(job.created, Some(now)).unwrap_or_default(),
    ];
    if columns.namespace {
        row.insert(0, job.namespace.clone());
    }
    if columns.wide {
        row.extend([
            plugin(job),
            between(job.started, Some(job.ended.unwrap_or(now))).unwrap_or_default(),
            Outlook::new(job, now).sentence(),
            job.bounds.join(", "),
        ]);
    }
    row
}

/// Returns one job with a table of its targets.
pub fn job_text(job: &JobView, rows: TargetRows, now: Timestamp) -> String {
    let mut lines: Vec<String> = facts(job, now)
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{:<14}{}", format!("{name}:"), escaped(&value)))
        .collect();
    let notices = job.notices.iter().map(|notice| {
        let text = format!("{}={} {}: {}", notice.condition, notice.status, notice.reason, notice.message);
        escaped(&text).into_owned()
    });
    lines.extend(notices.chain(job.missing_detail()));
    // The table shows the nodes.
    let outputs = job.outputs.iter().filter(|output| output.name != "node");
    lines.extend(outputs.map(|output| output_line(output, rows)));
    let shown: Vec<&TargetView> = match rows {
        TargetRows::First => job.by_need().take(FIRST_ROWS).collect(),
        TargetRows::All => job.targets().iter().collect(),
    };
    let mut text = lines.join("\n") + "\n";
    if !shown.is_empty() {
        let row = |target: &&TargetView| {
            let state = target.state().to_owned();
            vec![target.label(), state, target.span(now).unwrap_or_default(), target.detail(now)]
        };
        text = text + "\n" + &text_table(&["TARGET", "STATE", "FOR", ""], shown.iter().map(row));
    }
    let left = job.targets().len().saturating_sub(shown.len());
    if left > 0 { text + &format!("... and {left} more; -o wide shows all\n") } else { text }
}

/// Returns the line of an output, which is whole if the user requests everything.
fn output_line(output: &ShownOutput, rows: TargetRows) -> String {
    let text = escaped(&format!("{}: {}", output.name, output.value)).into_owned();
    if rows == TargetRows::All { text } else { cut_end(&text, OUTPUT_COLUMNS).into_owned() }
}

fn facts(job: &JobView, now: Timestamp) -> [(&'static str, String); 8] {
    let progress =
        format!("{}, {}% of {}: {}", word(job), job.counts.percent(), job.counts.total, job.counts.sentence());
    let held_back = job.waits_for.clone().map(|word| match &job.waiting {
        Some(sentence) => format!("{word} ({sentence})"),
        None => word,
    });
    let started = job.started.map(|time| match between(Some(time), job.ended) {
        Some(took) => format!("{}, took {took}", rfc_3339(time)),
        None => format!("{}, {} ago", rfc_3339(time), between(Some(time), Some(now)).unwrap_or_default()),
    });
    [
        ("Job", job.title()),
        ("Action", job.action.clone()),
        ("Plugin", plugin(job)),
        ("Bounds", job.bounds.join(", ")),
        ("Progress", progress),
        ("Started", started.unwrap_or_default()),
        ("Rate", Outlook::new(job, now).sentence()),
        ("Waits for", held_back.unwrap_or_default()),
    ]
}

/// Returns the line for one change of `job`.
pub fn change_text(change: &ViewChange, job: &JobView, now: Timestamp) -> String {
    let line = match change {
        ViewChange::Job => {
            let mut parts = vec![format!("{} of {}", job.counts.ended(), job.counts.total), job.counts.sentence()];
            parts.extend(Some(Outlook::new(job, now).sentence()).filter(|sentence| !sentence.is_empty()));
            parts.extend(job.waits_for.as_ref().map(|word| format!("waits for {word}")));
            parts.extend(job.notices.iter().map(|notice| format!("{}: {}", notice.reason, notice.message)));
            format!("job     {:<24} {:<10} {}", job.name, word(job), parts.join("; "))
        }
        ViewChange::Target(index) => job.targets().get(*index).map_or_else(String::new, |target| {
            format!("target  {:<24} {:<10} {}", target.label(), target.state(), target.detail(now))
        }),
        ViewChange::Disconnected(cause) => format!("the cluster is not reached, asking again: {cause}"),
        ViewChange::Connected => "the cluster is reached again".to_owned(),
        ViewChange::Deleted => format!("job     {:<24} deleted before it ended", job.name),
    };
    format!("{}  {}", rfc_3339(now), escaped(line.trim_end()))
}

/// Returns the progress of a job, and whether it is being deleted or is a dry run.
pub(crate) fn word(job: &JobView) -> String {
    let mut word = progress(job);
    if job.is_deleting {
        word += " (being deleted)";
    }
    word
}

/// Returns the progress of a job, and whether it is a dry run.
fn progress(job: &JobView) -> String {
    let word = job.progress.word();
    if job.dry_run { format!("{word} (dry run)") } else { word.to_owned() }
}

/// Returns the name and version of the plugin.
pub(crate) fn plugin(job: &JobView) -> String {
    job.plugin.as_ref().map(|plugin| format!("{} {}", plugin.name, plugin.version)).unwrap_or_default()
}

/// Returns rows below a header, in the format of kubectl.
pub fn text_table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| escaped(cell).into_owned()));
    }
    // The tables of kubectl begin in the first column and have three spaces between columns and none at the end.
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
