//! The screen of one job in a terminal: what is shown of it, and what keys change about that.
//!
//! Work that grows with the number of targets is done when a newer view or another filter comes, never for a frame.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::job_view::JobView;
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
    fn next(self) -> Self {
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
    /// Indexes of the targets that the filter admits, what needs eyes first.
    rows: Vec<usize>,
    /// The chosen row. It stays in its place while targets move: whoever looks at the top sees what needs eyes.
    chosen: usize,
    /// The first row that is shown.
    first: usize,
    /// Rows that the last frame had room for.
    room: usize,
}

impl JobScreen {
    /// The screen of a job, from the top.
    pub fn new(job: JobView) -> Self {
        let mut screen = Self { room: 1, ..Self::default() };
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
        let page = self.room.max(1);
        match key {
            Keypress::Up => self.chosen = self.chosen.saturating_sub(1),
            Keypress::Down => self.chosen = self.chosen.saturating_add(1),
            Keypress::PageUp => self.chosen = self.chosen.saturating_sub(page),
            Keypress::PageDown => self.chosen = self.chosen.saturating_add(page),
            Keypress::Home => self.chosen = 0,
            Keypress::End => self.chosen = usize::MAX,
            Keypress::Filter => {
                self.filter = self.filter.next();
                self.chosen = 0;
                self.admit();
            }
            Keypress::Leave => return Reaction::Leave,
        }
        self.chosen = self.chosen.min(self.rows.len().saturating_sub(1));
        Reaction::Redraw
    }

    /// The rows for `room` lines: the place of the first one, and the targets.
    pub(crate) fn visible(&mut self, room: usize) -> (usize, Vec<&TargetView>) {
        self.room = room;
        let last = self.rows.len().saturating_sub(room);
        let lowest = self.chosen.saturating_add(1).saturating_sub(room);
        self.first = self.first.max(lowest).min(self.chosen).min(last);
        let indexes = self.rows.iter().skip(self.first).take(room);
        (self.first, indexes.filter_map(|index| self.job.targets().get(*index)).collect())
    }

    /// The chosen target and its place among the rows.
    pub(crate) fn chosen(&self) -> Option<(usize, &TargetView)> {
        Some((self.chosen, self.job.targets().get(*self.rows.get(self.chosen)?)?))
    }

    /// The number of rows that the filter admits.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    fn admit(&mut self) {
        let admitted = self.job.by_need().filter(|target| self.filter.admits(target));
        self.rows = admitted.map(|target| target.index).collect();
        self.chosen = self.chosen.min(self.rows.len().saturating_sub(1));
    }
}
