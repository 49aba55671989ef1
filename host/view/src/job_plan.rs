//! What a job would do if it were created, as data: the document of `oarlock plan -o json`. Field names are stable, and
//! docs/planning.md lists them.

use serde::Serialize;

use crate::document::pretty;

/// What a job would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobPlan {
    /// Its namespace.
    pub namespace: String,
    /// Its name; empty where the cluster would choose one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its action.
    pub action: String,
    /// The plugin that the plan was made with.
    pub plugin: PlanPlugin,
    /// The file of its grant.
    pub grants: String,
    /// How the cluster's plugin compares.
    pub cluster: ClusterPlugin,
    /// Numbers of targets.
    pub counts: PlanCounts,
    /// What the plugin may do after the first changes, as words.
    pub possible: Vec<String>,
    /// What should be known before the job is created.
    pub warnings: Vec<String>,
    /// What the API server said to the job itself, where it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerAnswer>,
    /// The targets, in the order of the job.
    pub targets: Vec<PlanTarget>,
}

/// A plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanPlugin {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// `sha256:...` of its file.
    pub digest: String,
    /// The file, where it is one of this machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
}

/// How the plugin of a cluster compares with that of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPlugin {
    /// The comparison.
    pub comparison: Comparison,
    /// The plugin that the cluster serves the action with, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PlanPlugin>,
    /// A sentence about it.
    pub message: String,
}

/// A comparison by digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Comparison {
    /// The cluster serves the very same file.
    Same,
    /// It serves the action with another file.
    Differs,
    /// It does not serve the action.
    NotServed,
    /// Nobody said.
    #[default]
    Unknown,
}

/// Numbers of targets: those of each outcome, which are all of them, and those that the API server spoke of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanCounts {
    /// All.
    pub total: usize,
    /// Those of outcome `Changed`.
    pub changed: usize,
    /// Those of outcome `Waiting`.
    pub waiting: usize,
    /// Those of outcome `Succeeded`.
    pub succeeded: usize,
    /// Those of outcome `Failed`.
    pub failed: usize,
    /// Targets of which the API server accepts all first changes, however many; 0 where it was not asked.
    pub accepted: usize,
    /// Targets of which it refuses one or more.
    pub refused: usize,
}

/// What would become of a target first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum PlanOutcome {
    /// It would fail, at once or once it starts.
    Failed,
    /// It is changed at once.
    #[default]
    Changed,
    /// Nothing is done to it at once; its first changes are those that come later, where they are known.
    Waiting,
    /// There is nothing to do.
    Succeeded,
}

/// One target of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanTarget {
    /// Its position, from 0.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// What would become of it first.
    pub outcome: PlanOutcome,
    /// What keeps it from starting at once, in a word; then all else is said of the time after that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Why it fails, or why nothing is done at first, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What comes before the first changes, or before it fails.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// The first changes, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<PlanChange>,
    /// What the API server said to the first requests, where it was asked: one that it refuses speaks for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerAnswer>,
}

/// One change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanChange {
    /// `evict`, `patch`, `create` or `delete`.
    pub verb: String,
    /// `apiVersion` of the object.
    pub api_version: String,
    /// `kind` of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Its parts, such as `labels a=b; finalizers f`; empty if the verb says all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub what: String,
}

/// The API server's answer to a request that it was to try.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerAnswer {
    /// It would do it.
    pub accepted: bool,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl JobPlan {
    /// Counts the targets anew.
    pub fn count(&mut self) {
        let of = |outcome| self.targets.iter().filter(|target| target.outcome == outcome).count();
        let answers = |accepted| {
            let answer = |target: &&PlanTarget| target.server.as_ref().is_some_and(|own| own.accepted == accepted);
            self.targets.iter().filter(answer).count()
        };
        self.counts = PlanCounts {
            total: self.targets.len(),
            changed: of(PlanOutcome::Changed),
            waiting: of(PlanOutcome::Waiting),
            succeeded: of(PlanOutcome::Succeeded),
            failed: of(PlanOutcome::Failed),
            accepted: answers(true),
            refused: answers(false),
        };
    }

    /// True if some target would fail, or the API server refuses something.
    pub fn has_trouble(&self) -> bool {
        let refused = self.server.as_ref().is_some_and(|answer| !answer.accepted);
        refused || self.counts.failed > 0 || self.counts.refused > 0
    }
}

/// The document of a plan.
///
/// # Errors
///
/// Fails only if a number has no form in JSON.
pub fn plan_document(plan: &JobPlan) -> serde_json::Result<String> {
    pretty(plan)
}
