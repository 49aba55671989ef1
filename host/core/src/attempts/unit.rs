//! A unit: a step of a JobFlow, or a node of a DaemonJob. Its entry holds everything that the host remembers of it.

use serde::{Deserialize, Serialize};

/// Stands for the UID of a Job that only the status of the original operator names.
pub(crate) const UNSEEN: &str = "unknown";
/// The reason of a unit whose entry was lost with its JobRecord.
pub(crate) const RECORD_LOST: &str = "RecordLost";

/// State of a unit. Source: docs/jobflow.md 2.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum UnitState {
    /// The unit waits for other units or for its start.
    #[default]
    Waiting,
    /// The host cannot build or create the child.
    Blocked,
    /// The child exists, without an active pod.
    Pending,
    /// The child runs.
    Running,
    /// An attempt failed, and the next attempt waits for its backoff.
    Retrying,
    /// The unit succeeded, permanently.
    Succeed,
    /// The unit failed.
    Failed,
    /// The unit does not run.
    Omitted,
}

impl UnitState {
    /// Returns true if the state is an outcome.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeed | Self::Failed | Self::Omitted)
    }

    /// Returns true if a child has no outcome, or the next child waits.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Pending | Self::Running | Self::Retrying)
    }
}

/// The entry of a unit in `status.steps`, `status.nodes` or a JobRecord.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unit {
    /// Name of the step or node.
    pub name: String,
    /// State of the unit.
    pub state: UnitState,
    /// The reason for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message for people, at most 256 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Name of the newest child.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// UID of the newest child.
    #[serde(rename = "jobUID", skip_serializing_if = "String::is_empty")]
    pub job_uid: String,
    /// Number of the newest attempt. The first attempt is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Infrastructure failures since `countedFrom`.
    #[serde(skip_serializing_if = "is_zero")]
    pub infra_attempts: u32,
    /// The first attempt that counts for the retry policy. A retry by hand restarts the count.
    #[serde(skip_serializing_if = "is_zero")]
    pub counted_from: u32,
    /// Creation time of the newest child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// End time of the newest child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// The digest of the newest child's inputs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// True if the inputs of the child have changed since it was built.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub outdated: bool,
    /// True if the unit failed, but counts as succeeded for other units.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tolerated: bool,
    /// Name of the step that made up for the failure of this unit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub handled_by: String,
    /// True if the unit failed while the spec was refused. The host decides on another attempt once it accepts the spec.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unjudged: bool,
    /// True if the unit failed before a retry by hand that named other units. The failure stops no other unit, and counts only in the end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub passed_over: bool,
    /// UID of the node.
    #[serde(rename = "nodeUID", skip_serializing_if = "String::is_empty")]
    pub node_uid: String,
    /// Time since which the next attempt waits for the node to be Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ready_since: Option<String>,
    /// UID and generation of the JobTemplate that the newest child was built from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// The version that `outdated` was last compared with. Not stored.
    #[serde(skip)]
    pub judged_by: JudgedBy,
}

/// The last comparison of a child with its JobTemplate. It saves the next comparison. All values are equal, so that it never makes units differ.
#[derive(Clone, Debug, Default)]
pub enum JudgedBy {
    /// The child was compared with the version of the JobTemplate that it was built from, as stored.
    #[default]
    Stored,
    /// The child was not compared yet. It may have been built from an earlier spec.
    Nothing,
    /// The child was compared with this version of the JobTemplate.
    Version(Box<str>),
}

impl PartialEq for JudgedBy {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for JudgedBy {}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Unit {
    /// Returns a unit that has not started.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Sets the state with its reason and message.
    pub fn set(&mut self, state: UnitState, reason: &str, message: &str) {
        self.state = state;
        self.reason = crate::object::bound::shown(reason, REASON_BYTES);
        self.message = crate::object::bound::shown_cause(message, MESSAGE_BYTES);
    }

    /// Resets the unit to its beginning, as a retry by hand does. A number that was given up is not used again, so that a late child with that number
    /// does not count for the new attempt.
    pub fn start_over(&mut self) {
        let is_used = self.has_child() || !self.job.is_empty() || self.state == UnitState::Failed;
        let next = self.attempt.saturating_add(is_used.into());
        let kept = Self { node_uid: std::mem::take(&mut self.node_uid), ..Self::new(&self.name) };
        *self = Self { attempt: next, counted_from: next, ..kept };
    }

    /// Returns true if the unit failed and the failure counts.
    pub fn has_failed(&self) -> bool {
        self.state == UnitState::Failed && !self.tolerated && self.handled_by.is_empty()
    }

    /// Returns true if the failure keeps other units from starting.
    pub fn stops_others(&self) -> bool {
        self.has_failed() && !self.passed_over
    }

    /// Returns true if the child was compared with this version of the JobTemplate.
    pub fn is_judged_by(&self, version: &str) -> bool {
        match &self.judged_by {
            JudgedBy::Stored => self.template == version,
            JudgedBy::Nothing => false,
            JudgedBy::Version(judged) => **judged == *version,
        }
    }

    /// Returns true if the newest attempt has a child.
    pub fn has_child(&self) -> bool {
        !self.job_uid.is_empty()
    }
}

/// The longest reason of a unit, in bytes. The author of the Job's condition decides its length.
const REASON_BYTES: usize = 128;
/// The longest message of a unit, in bytes.
pub const MESSAGE_BYTES: usize = 256;

/// The numbers of units by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CountsByState {
    /// All units.
    pub total: usize,
    /// All units except the omitted ones.
    pub desired: usize,
    /// Units in the state `Waiting`. The next fields count the other states.
    pub waiting: usize,
    #[expect(missing_docs, reason = "named as the states are")]
    pub blocked: usize,
    #[expect(missing_docs, reason = "named as the states are")]
    pub pending: usize,
    #[expect(missing_docs, reason = "named as the states are")]
    pub running: usize,
    #[expect(missing_docs, reason = "named as the states are")]
    pub retrying: usize,
    #[expect(missing_docs, reason = "named as the states are")]
    pub succeeded: usize,
    #[expect(missing_docs, reason = "named as the states are")]
    pub failed: usize,
    #[expect(missing_docs, reason = "named as the states are")]
    pub omitted: usize,
}

impl CountsByState {
    /// Counts these units by state.
    pub fn of<'a>(units: impl IntoIterator<Item = &'a Unit>) -> Self {
        let mut counts = Self::default();
        for unit in units {
            counts.total += 1;
            *match unit.state {
                UnitState::Waiting => &mut counts.waiting,
                UnitState::Blocked => &mut counts.blocked,
                UnitState::Pending => &mut counts.pending,
                UnitState::Running => &mut counts.running,
                UnitState::Retrying => &mut counts.retrying,
                UnitState::Succeed => &mut counts.succeeded,
                UnitState::Failed => &mut counts.failed,
                UnitState::Omitted => &mut counts.omitted,
            } += 1;
        }
        counts.desired = counts.total - counts.omitted;
        counts
    }

    /// Returns the number of units that have an outcome.
    pub fn terminal(&self) -> usize {
        self.succeeded + self.failed + self.omitted
    }
}
