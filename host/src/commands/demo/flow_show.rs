//! A JobFlow or a DaemonJob on the screen of the demo: drawn in place on a terminal, one line for each change elsewhere.

use crossterm::style::{Color, Stylize as _};
use indicatif::ProgressBar;
use k8s_openapi::jiff::Timestamp;
use oarlock_view::{FlowGraph, FlowKind, FlowView, ShownState, flow_changes, flow_news, flow_text, graph_text};

use super::screen::Screen;
use crate::commands::jobs::now;

/// Most columns of a drawing.
const WIDEST: usize = 100;

/// One of them as it changes.
pub(super) struct FlowShow<'a> {
    screen: &'a Screen,
    bar: ProgressBar,
    last: Option<FlowView>,
    drawn: String,
}

impl<'a> FlowShow<'a> {
    /// Nothing yet. What `last` shows is no news.
    pub(super) fn begin(screen: &'a Screen, kind: FlowKind, last: Option<FlowView>) -> anyhow::Result<Self> {
        screen.line("")?;
        Ok(Self { screen, bar: screen.bar(&format!("{}s", kind.unit()))?, last, drawn: String::new() })
    }

    /// Shows a newer view.
    pub(super) fn show(&mut self, view: &FlowView) -> anyhow::Result<()> {
        let at = now();
        if self.screen.is_live() {
            // Times go on where nothing else does.
            let drawn = coloured(&drawing(view, at));
            if drawn != self.drawn {
                self.bar.set_message(drawn.clone());
                self.bar.set_length(view.units().len() as u64);
                self.bar.set_position(view.units().iter().filter(|unit| unit.state.is_terminal()).count() as u64);
                self.drawn = drawn;
            }
        } else {
            let changes = flow_changes(self.last.as_ref(), view);
            changes.iter().try_for_each(|change| self.screen.change(&flow_news(change, view, at)))?;
        }
        self.last = Some(view.clone());
        Ok(())
    }

    /// Leaves the last state on the screen.
    pub(super) fn close(self) -> anyhow::Result<()> {
        self.bar.abandon();
        self.screen.line("")?;
        match self.last.filter(|_| !self.screen.is_live()) {
            Some(view) if view.has_ended => self.screen.line(&drawing(&view, now())),
            _ => Ok(()),
        }
    }
}

/// The graph of a JobFlow, the table of a DaemonJob.
pub(super) fn drawing(view: &FlowView, at: Timestamp) -> String {
    match view.kind {
        FlowKind::JobFlow => graph_text(&FlowGraph::new(view), width(), at),
        FlowKind::DaemonJob => flow_text(view, at),
    }
}

fn width() -> usize {
    let of_terminal = crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns));
    of_terminal.filter(|columns| *columns > 0).map_or(WIDEST, |columns| columns.min(WIDEST))
}

/// The same with a colour for each symbol of a state.
fn coloured(text: &str) -> String {
    ShownState::ALL.into_iter().fold(text.to_owned(), |text, state| match colour(state) {
        Some(colour) => text.replace(state.symbol(), &state.symbol().with(colour).to_string()),
        None => text,
    })
}

/// None for symbols that are ordinary signs, and for what did not begin.
fn colour(state: ShownState) -> Option<Color> {
    match state {
        ShownState::Failed => Some(Color::Red),
        ShownState::Blocked | ShownState::Retrying => Some(Color::Yellow),
        ShownState::Pending | ShownState::Running => Some(Color::Cyan),
        ShownState::Succeed => Some(Color::Green),
        ShownState::Waiting | ShownState::Omitted | ShownState::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colour_changes_nothing_but_the_symbols_of_states() {
        assert_eq!(coloured("○ a – b ? c"), "○ a – b ? c");
        let text = coloured("✓ build\n✗ test");
        for words in ["✓", " build\n", "✗", " test"] {
            assert!(text.contains(words), "{text:?}");
        }
    }
}
