//! A plan for people: facts, and a table in which targets of the same fate share a line.

use std::collections::BTreeMap;

use crate::job_plan::{JobPlan, PlanChange, PlanOutcome, PlanTarget, ServerAnswer};
use crate::plain::{TargetRows, text_table};
use crate::shown_text::escaped;

/// Lines of the table unless all targets are asked for.
const MOST_GROUPS: usize = 20;
/// Names that a line of several targets shows.
const EXAMPLES: usize = 3;

/// A plan as text.
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
        Some(_) => {
            format!("would accept the job, {} first changes, and refuse {}", plan.counts.accepted, plan.counts.refused)
        }
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

/// What targets wait for, with their numbers, the most first.
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

/// One line for each target.
fn every_target(plan: &JobPlan) -> String {
    let asked = is_asked(plan);
    let row = |target: &PlanTarget| row(target.name.clone(), target, &steps(target, PlanChange::words), asked);
    text_table(&header("TARGET", asked), plan.targets.iter().map(row))
}

/// One line for all targets of one fate.
fn groups(plan: &JobPlan) -> String {
    let mut groups: BTreeMap<Fate, Vec<&PlanTarget>> = BTreeMap::new();
    for target in &plan.targets {
        groups.entry(Fate::of(target)).or_default().push(target);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(fate, targets)| (fate.outcome, fate.waits_for.is_some(), std::cmp::Reverse(targets.len())));
    let asked = is_asked(plan);
    let rows = groups.iter().take(MOST_GROUPS).filter_map(|(fate, targets)| {
        let first = targets.first()?;
        let steps = if targets.len() == 1 { steps(first, PlanChange::words) } else { fate.steps.clone() };
        Some(row(names(targets), first, &steps, asked))
    });
    let text = text_table(&header("TARGETS", asked), rows);
    let left: usize = groups.iter().skip(MOST_GROUPS).map(|(_, targets)| targets.len()).sum();
    if left > 0 {
        return text + &format!("... and {left} more targets; --all shows every one\n");
    }
    let hides = groups.iter().any(|(_, targets)| targets.len() > EXAMPLES);
    if hides { text + "--all shows every target in a line of its own\n" } else { text }
}

/// What targets on one line share.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fate {
    outcome: PlanOutcome,
    waits_for: Option<String>,
    reason: Option<String>,
    steps: String,
    server: Option<(bool, String)>,
}

impl Fate {
    fn of(target: &PlanTarget) -> Self {
        // A message names its object.
        let plain = |text: &str| text.replace(&target.name, "NAME");
        Self {
            outcome: target.outcome,
            waits_for: target.waits_for.clone(),
            reason: target.reason.clone(),
            steps: plain(&steps(target, PlanChange::words_of_any)),
            server: target.server.as_ref().map(|answer| (answer.accepted, plain(&answer.message))),
        }
    }
}

impl PlanChange {
    fn words(&self) -> String {
        self.worded(&self.name)
    }

    /// The words without the name of the object.
    fn words_of_any(&self) -> String {
        self.worded("")
    }

    fn worded(&self, name: &str) -> String {
        let kind = self.kind.to_lowercase();
        let parts: Vec<&str> = [self.verb.as_str(), &kind, name].into_iter().filter(|part| !part.is_empty()).collect();
        let what = if self.what.is_empty() { String::new() } else { format!(" ({})", self.what) };
        parts.join(" ") + &what
    }
}

fn steps(target: &PlanTarget, words: impl Fn(&PlanChange) -> String) -> String {
    target.before.iter().cloned().chain(target.first.iter().map(words)).collect::<Vec<_>>().join(", then ")
}

fn is_asked(plan: &JobPlan) -> bool {
    plan.targets.iter().any(|target| target.server.is_some())
}

fn header(targets: &'static str, asked: bool) -> Vec<&'static str> {
    let mut header = vec![targets, "WHEN", "FIRST"];
    header.extend(asked.then_some("API SERVER"));
    header
}

fn row(names: String, target: &PlanTarget, steps: &str, asked: bool) -> Vec<String> {
    let when = target.waits_for.as_ref().map_or_else(|| "now".to_owned(), |word| format!("after {word}"));
    let why = || {
        let parts = [target.reason.as_deref(), target.message.as_deref()];
        parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
    };
    let first = match target.outcome {
        PlanOutcome::Changed => steps.to_owned(),
        PlanOutcome::Failed => format!("fails: {}", why()),
        PlanOutcome::Waiting => format!("nothing yet: {}", why()),
        PlanOutcome::Succeeded => "succeeds: nothing to do".to_owned(),
    };
    let mut row = vec![names, when, first];
    if asked {
        row.push(match &target.server {
            None => String::new(),
            Some(ServerAnswer { accepted: true, .. }) => "accepts".to_owned(),
            Some(ServerAnswer { message, .. }) => format!("refuses: {message}"),
        });
    }
    row
}

/// `998 x web-1, web-2, web-3, ...`.
fn names(targets: &[&PlanTarget]) -> String {
    let shown: Vec<&str> = targets.iter().take(EXAMPLES).map(|target| target.name.as_str()).collect();
    let more = if targets.len() > EXAMPLES { ", ..." } else { "" };
    let count = if targets.len() > 1 { format!("{} x ", targets.len()) } else { String::new() };
    format!("{count}{}{more}", shown.join(", "))
}
