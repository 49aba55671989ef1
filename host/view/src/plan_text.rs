//! A plan as text for people: facts, and a table in which targets with the same outcome share a line.

use std::collections::BTreeMap;

use crate::job_plan::{JobPlan, PlanChange, PlanOutcome, PlanTarget, ServerAnswer};
use crate::plain::{TargetRows, text_table};
use crate::shown_text::escaped;

/// The most lines of the table, unless the user requests all targets.
const MOST_GROUPS: usize = 20;
/// The number of names in a line of several targets.
const EXAMPLES: usize = 3;

/// Returns a plan as text.
pub fn plan_text(plan: &JobPlan, rows: TargetRows) -> String {
    let facts = facts(plan).into_iter().filter(|(_, value)| !value.is_empty());
    let lines = facts.map(|(name, value)| format!("{:<14}{}\n", format!("{name}:"), escaped(&value)));
    let warnings = plan.warnings.iter().map(|warning| format!("{:<14}{}\n", "Warning:", escaped(warning)));
    let text: String = lines.chain(warnings).collect();
    text + "\n"
        + &match rows {
            TargetRows::All => every_target(plan),
            TargetRows::First => groups(plan),
        }
}

fn facts(plan: &JobPlan) -> [(&'static str, String); 9] {
    let name = if plan.name.is_empty() { "(a name that the cluster chooses)" } else { &plan.name };
    let plugin = &plan.plugin;
    let server = match &plan.server {
        Some(ServerAnswer { accepted: false, message }) => format!("would refuse the job: {message}"),
        Some(_) => accepts(plan),
        None => String::new(),
    };
    [
        ("Job", format!("{}/{name}, not created", plan.namespace)),
        ("Action", plan.action.clone()),
        ("Plugin", format!("{} {}, {}, {}", plugin.name, plugin.version, plugin.digest, plugin.file)),
        ("Grants", plan.grants.clone()),
        ("Cluster", plan.cluster.message.clone()),
        ("Targets", counts(plan)),
        ("Waits", waits(plan)),
        ("Later", possible(plan)),
        ("API server", server),
    ]
}

/// Returns the numbers of targets whose first changes the API server accepts or refuses. A target may have several first changes.
fn accepts(plan: &JobPlan) -> String {
    let of = |count| format!("the first changes of {}", targets(count));
    match (plan.counts.accepted, plan.counts.refused) {
        (0, 0) => "would accept the job".to_owned(),
        (accepted, 0) => format!("would accept the job and {}", of(accepted)),
        (0, refused) => format!("would accept the job, and refuse {}", of(refused)),
        (accepted, refused) => format!("would accept the job and {}, and refuse {}", of(accepted), of(refused)),
    }
}

fn targets(count: usize) -> String {
    if count == 1 { "1 target".to_owned() } else { format!("{count} targets") }
}

fn counts(plan: &JobPlan) -> String {
    let of = &plan.counts;
    let parts = [
        (of.changed, "changed at once"),
        (of.waiting, "waiting"),
        (of.succeeded, "with nothing to do"),
        (of.failed, "that would fail"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
    format!("{}: {}", of.total, parts.collect::<Vec<_>>().join(", "))
}

/// Returns the reasons why targets wait, with their numbers, the highest number first.
fn waits(plan: &JobPlan) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for word in plan.targets.iter().filter_map(|target| target.waits_for.as_deref()) {
        *reasons.entry(word).or_default() += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    reasons.iter().map(|(word, count)| format!("{count} for {word}")).collect::<Vec<_>>().join(", ")
}

fn possible(plan: &JobPlan) -> String {
    if plan.possible.is_empty() { String::new() } else { format!("possible: {}", plan.possible.join(", ")) }
}

/// Returns one line for each target.
fn every_target(plan: &JobPlan) -> String {
    let asked = is_asked(plan);
    let row = |target: &PlanTarget| row(target.name.clone(), &Fate::of_one(target), asked);
    text_table(&header("TARGET", asked), plan.targets.iter().map(row))
}

/// Returns one line for all targets with the same columns.
fn groups(plan: &JobPlan) -> String {
    let mut groups: BTreeMap<Fate, Vec<&PlanTarget>> = BTreeMap::new();
    for target in &plan.targets {
        groups.entry(Fate::of_any(target)).or_default().push(target);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(fate, targets)| (fate.outcome, fate.is_late, std::cmp::Reverse(targets.len())));
    let asked = is_asked(plan);
    let rows = groups.iter().take(MOST_GROUPS).map(|(fate, targets)| match targets.as_slice() {
        [target] => row(target.name.clone(), &Fate::of_one(target), asked),
        _ => row(names(targets), fate, asked),
    });
    let text = text_table(&header("TARGETS", asked), rows);
    let left: usize = groups.iter().skip(MOST_GROUPS).map(|(_, targets)| targets.len()).sum();
    if left > 0 {
        return text + &format!("... and {left} more targets; --all shows every one\n");
    }
    let hides = groups.iter().any(|(_, targets)| targets.len() > EXAMPLES);
    if hides { text + "--all shows every target in a line of its own\n" } else { text }
}

/// The columns besides the names of targets. Targets with equal columns share a line.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fate {
    outcome: PlanOutcome,
    is_late: bool,
    when: String,
    first: String,
    server: String,
}

impl Fate {
    /// Returns the columns of one target, with the names of its objects.
    fn of_one(target: &PlanTarget) -> Self {
        Self::of(target, PlanChange::describe, str::to_owned)
    }

    /// Returns the columns of a target that other targets may share: without the names of objects, and with `NAME` for its own name.
    fn of_any(target: &PlanTarget) -> Self {
        Self::of(target, PlanChange::describe_of_any, |text| without_name(text, &target.name))
    }

    fn of(target: &PlanTarget, describe: impl Fn(&PlanChange) -> String, shown: impl Fn(&str) -> String) -> Self {
        let server = match &target.server {
            None => String::new(),
            Some(ServerAnswer { accepted: true, .. }) => "accepts".to_owned(),
            Some(ServerAnswer { message, .. }) => format!("refuses: {}", shown(message)),
        };
        Self {
            outcome: target.outcome,
            is_late: target.waits_for.is_some(),
            when: when(target),
            first: shown(&first(target, &steps(target, describe))),
            server,
        }
    }
}

/// Returns `text` with `NAME` in place of each occurrence of `name` that is not part of a longer name.
fn without_name(text: &str, name: &str) -> String {
    let in_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut shown = String::with_capacity(text.len());
    let mut from = 0;
    for (at, _) in text.match_indices(name).filter(|_| !name.is_empty()) {
        let end = at.saturating_add(name.len());
        let (before, after) = (text.get(..at).unwrap_or_default(), text.get(end..).unwrap_or_default());
        // A dot may end a sentence.
        let goes_on =
            after.starts_with(in_name) || after.strip_prefix('.').is_some_and(|rest| rest.starts_with(in_name));
        if at >= from && !before.ends_with(in_name) && !before.ends_with('.') && !goes_on {
            shown.push_str(text.get(from..at).unwrap_or_default());
            shown.push_str("NAME");
            from = end;
        }
    }
    shown + text.get(from..).unwrap_or_default()
}

impl PlanChange {
    fn describe(&self) -> String {
        self.worded(&self.name)
    }

    /// Returns the words without the name of the object.
    fn describe_of_any(&self) -> String {
        self.worded("")
    }

    fn worded(&self, name: &str) -> String {
        let kind = self.kind.to_lowercase();
        let parts: Vec<&str> = [self.verb.as_str(), &kind, name].into_iter().filter(|part| !part.is_empty()).collect();
        let what = if self.what.is_empty() { String::new() } else { format!(" ({})", self.what) };
        parts.join(" ") + &what
    }
}

fn steps(target: &PlanTarget, describe: impl Fn(&PlanChange) -> String) -> String {
    target.before.iter().cloned().chain(target.first.iter().map(describe)).collect::<Vec<_>>().join(", then ")
}

fn is_asked(plan: &JobPlan) -> bool {
    plan.targets.iter().any(|target| target.server.is_some())
}

fn header(targets: &'static str, asked: bool) -> Vec<&'static str> {
    let mut header = vec![targets, "WHEN", "FIRST"];
    header.extend(asked.then_some("API SERVER"));
    header
}

/// Returns when a target starts. A skipped target never starts.
fn when(target: &PlanTarget) -> String {
    match &target.waits_for {
        _ if is_skipped(target) => "never".to_owned(),
        Some(word) => format!("after {word}"),
        None => "now".to_owned(),
    }
}

/// Returns the first outcome of a target. A target that fails may be changed before.
fn first(target: &PlanTarget, steps: &str) -> String {
    let why = || {
        let parts = [target.reason.as_deref(), target.message.as_deref()];
        parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
    };
    match target.outcome {
        PlanOutcome::Failed if is_skipped(target) => {
            format!("skipped: {}", target.message.as_deref().unwrap_or_default())
        }
        PlanOutcome::Failed if steps.is_empty() => format!("fails: {}", why()),
        PlanOutcome::Failed => format!("{steps}, then fails: {}", why()),
        PlanOutcome::Waiting if steps.is_empty() => format!("nothing yet: {}", why()),
        PlanOutcome::Changed | PlanOutcome::Waiting => steps.to_owned(),
        PlanOutcome::Succeeded => "succeeds: nothing to do".to_owned(),
    }
}

/// Returns true for a target that fails because others fail.
fn is_skipped(target: &PlanTarget) -> bool {
    target.outcome == PlanOutcome::Failed && target.reason.as_deref() == Some("Skipped")
}

fn row(names: String, fate: &Fate, asked: bool) -> Vec<String> {
    let mut row = vec![names, fate.when.clone(), fate.first.clone()];
    row.extend(asked.then(|| fate.server.clone()));
    row
}

/// Returns the names of targets, such as `998 x web-1, web-2, web-3, ...`.
fn names(targets: &[&PlanTarget]) -> String {
    let shown: Vec<&str> = targets.iter().take(EXAMPLES).map(|target| target.name.as_str()).collect();
    let more = if targets.len() > EXAMPLES { ", ..." } else { "" };
    let count = if targets.len() > 1 { format!("{} x ", targets.len()) } else { String::new() };
    format!("{count}{}{more}", shown.join(", "))
}
