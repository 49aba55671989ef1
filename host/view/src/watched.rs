//! The traits of everything that a watch can follow, so that one command follows jobs, flows and DaemonJobs.

use k8s_openapi::jiff::Timestamp;
use ratatui::Frame;

use crate::changes::{ViewChange, changes};
use crate::document::change_line;
use crate::flow_document::flow_change_line;
use crate::flow_graph::FlowGraph;
use crate::flow_plain::{flow_change_text, flow_changes, flow_text};
use crate::flow_screen::{FlowScreen, draw_flow};
use crate::flow_text::graph_text;
use crate::flow_view::{FlowKind, FlowView};
use crate::frame::draw;
use crate::job_view::JobView;
use crate::plain::{TargetRows, change_text, job_text};
use crate::screen::{JobScreen, Keypress, Moment, Reaction};
use crate::shown_progress::ShownProgress;

/// The columns of the text that stays in the scrollback of a terminal.
const SCROLLBACK: usize = 100;

/// A view of an object that a watch follows to its end.
pub trait Watched: Sized {
    /// The screen of the view.
    type Screen: WatchedScreen<View = Self>;

    /// Returns true once nothing in the object changes any more.
    fn has_ended(&self) -> bool;

    /// Returns true if the object succeeded.
    fn has_succeeded(&self) -> bool;

    /// Returns the handle that `oarlock watch` accepts, such as `opj/web`.
    fn handle(&self) -> String;

    /// Returns the changes from an earlier view to this view.
    fn changes(&self, before: Option<&Self>) -> Vec<ViewChange>;

    /// Returns the line of text for a change.
    fn change_text(&self, change: &ViewChange, now: Timestamp) -> String;

    /// Returns the line of JSON for a change.
    ///
    /// # Errors
    ///
    /// If a number has no form in JSON.
    fn change_line(&self, change: &ViewChange, now: Timestamp) -> serde_json::Result<String>;

    /// Returns the text that stays in the terminal after the screen.
    fn text(&self, now: Timestamp) -> String;
}

/// The screen of a view.
pub trait WatchedScreen: Sized {
    /// The view that the screen shows.
    type View;

    /// Returns the screen of a view, scrolled to the top.
    fn begin(view: Self::View) -> Self;

    /// Takes a newer view.
    fn renew(&mut self, view: Self::View);

    /// Returns the view that the screen shows.
    fn shown(&self) -> &Self::View;

    /// Handles a key.
    fn react(&mut self, key: Keypress) -> Reaction;

    /// Draws the screen into the whole of `frame`.
    fn draw(&mut self, frame: &mut Frame<'_>, moment: &Moment);
}

impl Watched for JobView {
    type Screen = JobScreen;

    fn has_ended(&self) -> bool {
        self.progress.is_terminal()
    }

    fn has_succeeded(&self) -> bool {
        self.progress == ShownProgress::Succeeded
    }

    fn handle(&self) -> String {
        format!("{}/{}", if self.is_ops { "ops" } else { "opj" }, self.name)
    }

    fn changes(&self, before: Option<&Self>) -> Vec<ViewChange> {
        changes(before, self)
    }

    fn change_text(&self, change: &ViewChange, now: Timestamp) -> String {
        change_text(change, self, now)
    }

    fn change_line(&self, change: &ViewChange, now: Timestamp) -> serde_json::Result<String> {
        change_line(change, self, now)
    }

    fn text(&self, now: Timestamp) -> String {
        job_text(self, TargetRows::First, now)
    }
}

impl WatchedScreen for JobScreen {
    type View = JobView;

    fn begin(view: JobView) -> Self {
        Self::new(view)
    }

    fn renew(&mut self, view: JobView) {
        self.update(view);
    }

    fn shown(&self) -> &JobView {
        self.job()
    }

    fn react(&mut self, key: Keypress) -> Reaction {
        self.press(key)
    }

    fn draw(&mut self, frame: &mut Frame<'_>, moment: &Moment) {
        draw(frame, self, moment);
    }
}

impl Watched for FlowView {
    type Screen = FlowScreen;

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn has_succeeded(&self) -> bool {
        Self::has_succeeded(self)
    }

    fn handle(&self) -> String {
        Self::handle(self)
    }

    fn changes(&self, before: Option<&Self>) -> Vec<ViewChange> {
        flow_changes(before, self)
    }

    fn change_text(&self, change: &ViewChange, now: Timestamp) -> String {
        flow_change_text(change, self, now)
    }

    fn change_line(&self, change: &ViewChange, now: Timestamp) -> serde_json::Result<String> {
        flow_change_line(change, self, now)
    }

    fn text(&self, now: Timestamp) -> String {
        match self.kind {
            FlowKind::JobFlow => graph_text(&FlowGraph::new(self), SCROLLBACK, now),
            FlowKind::DaemonJob => flow_text(self, now),
        }
    }
}

impl WatchedScreen for FlowScreen {
    type View = FlowView;

    fn begin(view: FlowView) -> Self {
        Self::new(view)
    }

    fn renew(&mut self, view: FlowView) {
        self.update(view);
    }

    fn shown(&self) -> &FlowView {
        self.view()
    }

    fn react(&mut self, key: Keypress) -> Reaction {
        self.press(key)
    }

    fn draw(&mut self, frame: &mut Frame<'_>, moment: &Moment) {
        draw_flow(frame, self, moment);
    }
}
