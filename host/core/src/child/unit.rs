//! A unit: a step of a JobFlow, or a node of a DaemonJob. Its entry is all that is remembered of it.

use serde::{Deserialize, Serialize};

/// How far a unit is. Source: docs/jobflow.md 2.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum UnitState {
    /// It is not its turn.
    #[default]
    Waiting,
    /// It cannot be built or created.
    Blocked,
    /// It has a child without active pod.
    Pending,
    /// Its child runs.
    Running,
    /// An attempt failed; the next one waits for its back-off.
    Retrying,
    /// It ended well, for ever.
    Succeed,
    /// It ended badly.
    Failed,
    /// It does not run.
    Omitted,
}

impl UnitState {
    /// True for an outcome.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeed | Self::Failed | Self::Omitted)
    }

    /// True where a child is undecided, or the next one waits.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Pending | Self::Running | Self::Retrying)
    }
}

/// The entry of a unit in `status.steps`, `status.nodes` or a JobRecord.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unit {
    /// The step's or node's name.
    pub name: String,
    /// How far it is.
    pub state: UnitState,
    /// Why, for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for people: at most 256 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The name of its newest child.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// The UID of its newest child.
    #[serde(rename = "jobUID", skip_serializing_if = "String::is_empty")]
    pub job_uid: String,
    /// The number of its newest attempt; 0 is the first.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Attempts that failed through the infrastructure, since `countedFrom`.
    #[serde(skip_serializing_if = "is_zero")]
    pub infra_attempts: u32,
    /// The first attempt that counts for the retry policy: a retry by hand counts anew.
    #[serde(skip_serializing_if = "is_zero")]
    pub counted_from: u32,
    /// When its newest child was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// When its newest child ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// The digest of what its newest child was built from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Its child was built from something else than what stands there now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub outdated: bool,
    /// It failed, and that counts as success for the others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tolerated: bool,
    /// It failed, and the step of this name made up for that.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub handled_by: String,
    /// It failed while the spec was refused: whether another attempt follows is judged once it is accepted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unjudged: bool,
    /// It failed before a retry by hand that named others: it stops nothing any more, and counts only in the end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub passed_over: bool,
    /// The UID of the node.
    #[serde(rename = "nodeUID", skip_serializing_if = "String::is_empty")]
    pub node_uid: String,
    /// Since when its next attempt waits for the node to be Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ready_since: Option<String>,
    /// UID and generation of the JobTemplate that its newest child was built from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// What `outdated` was judged by; not stored.
    #[serde(skip)]
    pub judged_by: JudgedBy,
}

/// What a child was compared with last. It spares the next comparison and says nothing of the unit, so it makes no unit differ.
#[derive(Clone, Debug, Default)]
pub enum JudgedBy {
    /// As it is stored: with the version of the JobTemplate that it was built from.
    #[default]
    Stored,
    /// Nothing yet: it may have been built from a spec of before.
    Nothing,
    /// This version of the JobTemplate.
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
    /// A unit that has not started.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Gives it a state with its reason and message.
    pub fn set(&mut self, state: UnitState, reason: &str, message: &str) {
        self.state = state;
        self.reason = crate::job::bound::shown(reason, REASON_BYTES);
        self.message = crate::job::bound::shown_cause(message, MESSAGE_BYTES);
    }

    /// Puts it back to its beginning, as a retry by hand does. A number that was given up is not used again: a child of it that
    /// comes late is not the new attempt's.
    pub fn start_over(&mut self) {
        let is_used = self.has_child() || !self.job.is_empty() || self.state == UnitState::Failed;
        let next = self.attempt.saturating_add(is_used.into());
        let kept = Self { node_uid: std::mem::take(&mut self.node_uid), ..Self::new(&self.name) };
        *self = Self { attempt: next, counted_from: next, ..kept };
    }

    /// True where the failure counts.
    pub fn has_failed(&self) -> bool {
        self.state == UnitState::Failed && !self.tolerated && self.handled_by.is_empty()
    }

    /// True where the failure keeps others from starting.
    pub fn stops_others(&self) -> bool {
        self.has_failed() && !self.passed_over
    }

    /// True where its child was compared with this version of the JobTemplate.
    pub fn is_judged_by(&self, version: &str) -> bool {
        match &self.judged_by {
            JudgedBy::Stored => self.template == version,
            JudgedBy::Nothing => false,
            JudgedBy::Version(judged) => **judged == *version,
        }
    }

    /// True where its newest attempt has a child.
    pub fn has_child(&self) -> bool {
        !self.job_uid.is_empty()
    }
}

/// Longest reason of a unit: whoever writes the condition of a Job writes it.
const REASON_BYTES: usize = 128;
/// Longest message of a unit.
pub const MESSAGE_BYTES: usize = 256;

/// The numbers of units by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CountsByState {
    /// All entries.
    pub total: usize,
    /// All but the omitted ones.
    pub desired: usize,
    /// Of each state.
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
    /// Counts these units.
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

    /// Units that have an outcome.
    pub fn terminal(&self) -> usize {
        self.succeeded + self.failed + self.omitted
    }
}
