//! The screen of one job in a terminal: the shown data, and the keys that change it.
//!
//! Work that grows with the number of targets is done for a newer view or another filter, and never for a frame.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::job_view::JobView;
use crate::rows::Rows;
use crate::shown_progress::ShownProgress;
use crate::target_view::TargetView;

/// The targets that the table shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All targets. Targets that need attention come first.
    #[default]
    All,
    /// Targets that are blocked, in flight or failed.
    NeedsEyes,
    /// Targets that have started and not ended.
    InFlight,
    /// Failed targets.
    Failed,
    /// Targets that have not started.
    Pending,
    /// Targets that succeeded.
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

    /// Returns the name of the filter in the hint line.
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

/// A key that the screen knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keypress {
    /// Moves one target up.
    Up,
    /// Moves one target down.
    Down,
    /// Moves one page up.
    PageUp,
    /// Moves one page down.
    PageDown,
    /// Moves to the first target.
    Home,
    /// Moves to the last target.
    End,
    /// Selects the next filter.
    Filter,
    /// Switches between the graph and the table.
    Drawing,
    /// Leaves the screen.
    Leave,
}

/// The action of the program that a key requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The program draws another frame.
    Redraw,
    /// The program leaves the screen.
    Leave,
}

/// The state of the connection to the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// The view is current.
    #[default]
    Reached,
    /// The view is old, and the client retries.
    Lost {
        /// The cause.
        cause: String,
        /// The time since the connection was lost.
        lasting: SignedDuration,
    },
}

/// The time and the connection that a frame shows besides the job.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The current time.
    pub now: Timestamp,
    /// The state of the connection to the cluster.
    pub connection: Connection,
}

/// The screen of one job in a terminal.
#[derive(Clone, Debug, Default)]
pub struct JobScreen {
    job: JobView,
    filter: Filter,
    /// The targets that the filter admits. Targets that need attention come first.
    rows: Rows,
}

impl JobScreen {
    /// Returns the screen of a job, scrolled to the top.
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

    /// Returns the view that the screen shows.
    pub fn job(&self) -> &JobView {
        &self.job
    }

    /// Returns the filter of the table.
    pub fn filter(&self) -> Filter {
        self.filter
    }

    /// Handles a key.
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

    /// Returns the rows for `room` lines: the place of the first row, and the targets.
    pub(crate) fn visible(&mut self, room: usize) -> (usize, Vec<&TargetView>) {
        let (first, indexes) = self.rows.visible(room);
        (first, indexes.iter().filter_map(|index| self.job.targets().get(*index)).collect())
    }

    /// Returns the chosen target and its place among the rows.
    pub(crate) fn chosen(&self) -> Option<(usize, &TargetView)> {
        let (place, index) = self.rows.chosen()?;
        Some((place, self.job.targets().get(index)?))
    }

    /// Returns the number of rows that the filter admits.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    fn admit(&mut self) {
        let filter = self.filter;
        let admitted = self.job.by_need().filter(|target| filter.admits(target));
        self.rows.set(admitted.map(|target| target.index).collect());
    }
}
