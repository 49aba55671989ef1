//! The screen of one job in a terminal: what is shown of it, and what keys change about that.
//!
//! Work that grows with the number of targets is done when a newer view or another filter comes, never for a frame.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::job_view::JobView;
use crate::rows::Rows;
use crate::shown_progress::ShownProgress;
use crate::target_view::TargetView;

/// The targets that the table shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All, with what needs eyes first.
    #[default]
    All,
    /// Blocked, in flight or failed.
    NeedsEyes,
    /// Started, not ended.
    InFlight,
    /// Failed.
    Failed,
    /// Not started.
    Pending,
    /// Succeeded.
    Succeeded,
}

impl Filter {
    pub(crate) fn next(self) -> Self {
        match self {
            Self::All => Self::NeedsEyes,
            Self::NeedsEyes => Self::InFlight,
            Self::InFlight => Self::Failed,
            Self::Failed => Self::Pending,
            Self::Pending => Self::Succeeded,
            Self::Succeeded => Self::All,
        }
    }

    fn admits(self, target: &TargetView) -> bool {
        match self {
            Self::All => true,
            Self::NeedsEyes => target.needs_eyes(),
            Self::InFlight => target.progress == ShownProgress::Processing,
            Self::Failed => target.progress == ShownProgress::Failed,
            Self::Pending => target.progress == ShownProgress::Pending,
            Self::Succeeded => target.progress == ShownProgress::Succeeded,
        }
    }

    /// Its name in the hint line.
    pub fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::NeedsEyes => "needs eyes",
            Self::InFlight => "in flight",
            Self::Failed => "failed",
            Self::Pending => "pending",
            Self::Succeeded => "succeeded",
        }
    }
}

/// A key, as far as the screen knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keypress {
    /// One target up.
    Up,
    /// One target down.
    Down,
    /// One page up.
    PageUp,
    /// One page down.
    PageDown,
    /// To the first target.
    Home,
    /// To the last target.
    End,
    /// The next filter.
    Filter,
    /// The graph in place of the table, or the other way round.
    Drawing,
    /// Away.
    Leave,
}

/// What a key asks of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Another frame.
    Redraw,
    /// To leave the screen.
    Leave,
}

/// Whether the cluster is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// The view is as new as the cluster tells.
    #[default]
    Reached,
    /// The view is old: the cluster is asked again.
    Lost {
        /// The cause.
        cause: String,
        /// The time for which it lasts.
        lasting: SignedDuration,
    },
}

/// The state of the world that a frame shows beside the job.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The time.
    pub now: Timestamp,
    /// Whether the cluster is reached.
    pub connection: Connection,
}

/// One job on a terminal.
#[derive(Clone, Debug, Default)]
pub struct JobScreen {
    job: JobView,
    filter: Filter,
    /// The targets that the filter admits, what needs eyes first.
    rows: Rows,
}

impl JobScreen {
    /// The screen of a job, from the top.
    pub fn new(job: JobView) -> Self {
        let mut screen = Self::default();
        screen.update(job);
        screen
    }

    /// Takes a newer view.
    pub fn update(&mut self, job: JobView) {
        self.job = job;
        self.admit();
    }

    /// The view it shows.
    pub fn job(&self) -> &JobView {
        &self.job
    }

    /// The filter of its table.
    pub fn filter(&self) -> Filter {
        self.filter
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: Keypress) -> Reaction {
        match key {
            Keypress::Leave => return Reaction::Leave,
            Keypress::Filter => {
                self.filter = self.filter.next();
                self.rows.go_home();
                self.admit();
            }
            _ => self.rows.press(key),
        }
        Reaction::Redraw
    }

    /// The rows for `room` lines: the place of the first one, and the targets.
    pub(crate) fn visible(&mut self, room: usize) -> (usize, Vec<&TargetView>) {
        let (first, indexes) = self.rows.visible(room);
        (first, indexes.iter().filter_map(|index| self.job.targets().get(*index)).collect())
    }

    /// The chosen target and its place among the rows.
    pub(crate) fn chosen(&self) -> Option<(usize, &TargetView)> {
        let (place, index) = self.rows.chosen()?;
        Some((place, self.job.targets().get(index)?))
    }

    /// The number of rows that the filter admits.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    fn admit(&mut self) {
        let filter = self.filter;
        let admitted = self.job.by_need().filter(|target| filter.admits(target));
        self.rows.set(admitted.map(|target| target.index).collect());
    }
}
