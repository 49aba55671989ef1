//! What a watch needs of whatever it follows, so that one command follows jobs, flows and runs on nodes.

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

/// Columns of what stays in a terminal's scrollback.
const SCROLLBACK: usize = 100;

/// A view of something that is followed to its end.
pub trait Watched: Sized {
    /// Its screen.
    type Screen: WatchedScreen<View = Self>;

    /// True once nothing of it moves any more.
    fn has_ended(&self) -> bool;

    /// True if it ended well.
    fn has_succeeded(&self) -> bool;

    /// Such as `opj/web`: what `oarlock watch` takes.
    fn handle(&self) -> String;

    /// What differs from the view before.
    fn changes(&self, before: Option<&Self>) -> Vec<ViewChange>;

    /// One line of text for a change.
    fn change_text(&self, change: &ViewChange, now: Timestamp) -> String;

    /// One line of JSON for a change.
    ///
    /// # Errors
    ///
    /// Fails only if a number has no form in JSON.
    fn change_line(&self, change: &ViewChange, now: Timestamp) -> serde_json::Result<String>;

    /// What stays in the terminal once the screen is gone.
    fn text(&self, now: Timestamp) -> String;
}

/// The screen of a view.
pub trait WatchedScreen: Sized {
    /// What it shows.
    type View;

    /// The screen from the top.
    fn begin(view: Self::View) -> Self;

    /// Takes a newer view.
    fn renew(&mut self, view: Self::View);

    /// The view it shows.
    fn shown(&self) -> &Self::View;

    /// Does what a key asks for.
    fn react(&mut self, key: Keypress) -> Reaction;

    /// Draws it into the whole of `frame`.
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
