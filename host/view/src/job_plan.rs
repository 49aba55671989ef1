//! The plan of a job that does not exist yet, as data: the document of `oarlock plan -o json`. The field names are stable, and
//! docs/planning.md lists them.

use serde::Serialize;

use crate::document::pretty;

/// The changes that a job would make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobPlan {
    /// The namespace of the job.
    pub namespace: String,
    /// The name of the job. It is empty if the cluster would choose a name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The action of the job.
    pub action: String,
    /// The plugin that the plan was made with.
    pub plugin: PlanPlugin,
    /// The file of the plugin's grant.
    pub grants: String,
    /// The comparison with the cluster's plugin.
    pub cluster: ClusterPlugin,
    /// The numbers of targets.
    pub counts: PlanCounts,
    /// The changes that the plugin may make after the first changes, in words.
    pub possible: Vec<String>,
    /// Warnings for the user before the job is created.
    pub warnings: Vec<String>,
    /// The API server's answer to the job itself, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerAnswer>,
    /// The targets, in the order of the job.
    pub targets: Vec<PlanTarget>,
}

/// A plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanPlugin {
    /// The name of the plugin.
    pub name: String,
    /// The version of the plugin.
    pub version: String,
    /// The digest of the plugin's file, `sha256:...`.
    pub digest: String,
    /// The file, if it is on this machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
}

/// The comparison of the plugin of a cluster with the plugin of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPlugin {
    /// The comparison.
    pub comparison: Comparison,
    /// The plugin with which the cluster serves the action, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PlanPlugin>,
    /// A sentence about the comparison.
    pub message: String,
}

/// A comparison by digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Comparison {
    /// The cluster serves the same file.
    Same,
    /// The cluster serves the action with another file.
    Differs,
    /// The cluster does not serve the action.
    NotServed,
    /// The plugin of the cluster is unknown.
    #[default]
    Unknown,
}

/// The numbers of targets for each outcome, which together are all targets, and for each answer of the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanCounts {
    /// The number of all targets.
    pub total: usize,
    /// The number of targets with the outcome `Changed`.
    pub changed: usize,
    /// The number of targets with the outcome `Waiting`.
    pub waiting: usize,
    /// The number of targets with the outcome `Succeeded`.
    pub succeeded: usize,
    /// The number of targets with the outcome `Failed`.
    pub failed: usize,
    /// The number of targets for which the API server accepts all first changes. It is 0 if the API server was not asked.
    pub accepted: usize,
    /// The number of targets for which the API server refuses at least one change.
    pub refused: usize,
}

/// The first outcome of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum PlanOutcome {
    /// The target would fail at once or once it starts.
    Failed,
    /// The job would change the target at once.
    #[default]
    Changed,
    /// The job would not change the target at once. The first changes are the later ones, if they are known.
    Waiting,
    /// The target needs no change.
    Succeeded,
}

/// One target of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanTarget {
    /// The index of the target, from 0.
    pub index: usize,
    /// The name of the target.
    pub name: String,
    /// The first outcome of the target.
    pub outcome: PlanOutcome,
    /// The reason why the target does not start at once, in a word. If it is set, the other fields describe the time after the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// The reason why the target fails or why the job makes no change at first, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The steps before the first changes or before the failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// The first changes, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<PlanChange>,
    /// The API server's answer to the first requests, if it was asked. One refused request counts as the answer to all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerAnswer>,
}

/// One change of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanChange {
    /// The verb: `evict`, `patch`, `create` or `delete`.
    pub verb: String,
    /// The `apiVersion` of the object.
    pub api_version: String,
    /// The `kind` of the object.
    pub kind: String,
    /// The name of the object.
    pub name: String,
    /// The parts of the change, such as `labels a=b; finalizers f`. It is empty if the verb says everything.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub what: String,
}

/// The API server's answer to a dry run of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerAnswer {
    /// True if the API server would make the change.
    pub accepted: bool,
    /// The reason for a refusal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl JobPlan {
    /// Counts the targets again.
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

    /// Returns true if a target would fail or the API server refuses a change.
    pub fn has_trouble(&self) -> bool {
        let refused = self.server.as_ref().is_some_and(|answer| !answer.accepted);
        refused || self.counts.failed > 0 || self.counts.refused > 0
    }
}

/// Returns the document of a plan.
///
/// # Errors
///
/// If a number has no form in JSON.
pub fn plan_document(plan: &JobPlan) -> serde_json::Result<String> {
    pretty(plan)
}
