//! State of a unit, the step of a JobFlow or the node of a DaemonJob, and the numbers of units by state.

use ratatui::style::{Color, Modifier, Style};
use serde::Serialize;
use serde_json::Value;

/// State of a unit in the words of the API, and one more for what cannot be told. Source: docs/jobflow.md 2.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum ShownState {
    /// It is not its turn.
    #[default]
    Waiting,
    /// It is its turn, and something is in its way.
    Blocked,
    /// Its child is there, without an active pod.
    Pending,
    /// Its child runs.
    Running,
    /// An attempt failed, and the next one waits for its time.
    Retrying,
    /// Ended well.
    Succeed,
    /// Ended otherwise.
    Failed,
    /// It never runs.
    Omitted,
    /// Not told: the word is of another version, or the entry could not be read.
    Unknown,
}

impl ShownState {
    /// All of them, in the order in which a person wants to hear of them.
    pub const ALL: [Self; 9] = [
        Self::Failed,
        Self::Blocked,
        Self::Retrying,
        Self::Running,
        Self::Pending,
        Self::Unknown,
        Self::Waiting,
        Self::Succeed,
        Self::Omitted,
    ];

    /// The state that a stored word names; no word means that it is not its turn.
    pub(crate) fn read(word: &str) -> Self {
        let known = Self::ALL.into_iter().find(|state| state.word() == word);
        known.unwrap_or(if word.is_empty() { Self::Waiting } else { Self::Unknown })
    }

    /// The word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Blocked => "Blocked",
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Retrying => "Retrying",
            Self::Succeed => "Succeed",
            Self::Failed => "Failed",
            Self::Omitted => "Omitted",
            Self::Unknown => "Unknown",
        }
    }

    /// One column that stands for it in a drawing.
    pub fn symbol(self) -> char {
        match self {
            Self::Waiting => '○',
            Self::Blocked => '■',
            Self::Pending => '◔',
            Self::Running => '●',
            Self::Retrying => '↻',
            Self::Succeed => '✓',
            Self::Failed => '✗',
            Self::Omitted => '–',
            Self::Unknown => '?',
        }
    }

    /// True once it changes by hand alone.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeed | Self::Failed | Self::Omitted)
    }

    /// True while a child of it may be at work, or will be by itself.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Pending | Self::Running | Self::Retrying)
    }

    /// The place in [`Self::ALL`]: what needs eyes first.
    pub(crate) fn rank(self) -> usize {
        Self::ALL.iter().position(|state| *state == self).unwrap_or(Self::ALL.len())
    }

    /// Its colour on a terminal.
    pub(crate) fn style(self) -> Style {
        match self {
            Self::Blocked | Self::Retrying => Style::new().fg(Color::Yellow),
            Self::Running | Self::Pending => Style::new().fg(Color::Cyan),
            Self::Failed => Style::new().fg(Color::Red),
            Self::Succeed => Style::new().fg(Color::Green),
            Self::Omitted => Style::new().add_modifier(Modifier::DIM),
            Self::Waiting | Self::Unknown => Style::new(),
        }
    }
}

/// Numbers of units by state, as `status.counts` has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnitCounts {
    /// All.
    pub total: usize,
    /// Not their turn.
    pub waiting: usize,
    /// Something is in their way.
    pub blocked: usize,
    /// With a child, without an active pod.
    pub pending: usize,
    /// At work.
    pub running: usize,
    /// Between two attempts.
    pub retrying: usize,
    /// Ended well.
    pub succeeded: usize,
    /// Ended otherwise.
    pub failed: usize,
    /// Never run.
    pub omitted: usize,
}

impl UnitCounts {
    /// The numbers that a status gives; those of the units where it gives none.
    pub(crate) fn new(counts: Option<&Value>, states: &[ShownState]) -> Self {
        let told = |name: &str| counts.and_then(|counts| counts.get(name)).and_then(Value::as_u64);
        let is_told = told("total").is_some();
        let number = |name: &str, state: ShownState| {
            if is_told {
                return told(name).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
            }
            states.iter().filter(|other| **other == state).count()
        };
        let total = told("total").and_then(|count| usize::try_from(count).ok());
        Self {
            total: total.unwrap_or(states.len()),
            waiting: number("waiting", ShownState::Waiting),
            blocked: number("blocked", ShownState::Blocked),
            pending: number("pending", ShownState::Pending),
            running: number("running", ShownState::Running),
            retrying: number("retrying", ShownState::Retrying),
            succeeded: number("succeeded", ShownState::Succeed),
            failed: number("failed", ShownState::Failed),
            omitted: number("omitted", ShownState::Omitted),
        }
    }

    /// Those that have ended or never run.
    pub fn ended(&self) -> usize {
        self.succeeded.saturating_add(self.failed).saturating_add(self.omitted)
    }

    /// The ended ones of all, as whole percent; 100 is said of all alone.
    pub fn percent(&self) -> usize {
        self.ended().saturating_mul(100).checked_div(self.total).unwrap_or(0).min(100)
    }

    /// `2 succeeded, 1 failed, 3 running, 4 waiting`, without what there is none of.
    pub fn sentence(&self) -> String {
        let parts = [
            (self.succeeded, "succeeded"),
            (self.failed, "failed"),
            (self.blocked, "blocked"),
            (self.retrying, "retrying"),
            (self.running, "running"),
            (self.pending, "pending"),
            (self.waiting, "waiting"),
            (self.omitted, "omitted"),
        ];
        let said: Vec<String> =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
        if said.is_empty() { "nothing to run".to_owned() } else { said.join(", ") }
    }
}
