//! The shape and the colour of each state: as an icon, as a cell of a grid, and as a part of a bar.
//!
//! The shapes are in one `svg` at the top of each document, so that a cell costs a few bytes. Colours are only in the style sheet.

use maud::{Markup, PreEscaped, html};
use oarlock_view::{ShownCounts, ShownProgress, ShownState, TargetView, UnitCounts, shares};

/// The parts of a bar share this many steps, of half a percent each.
const STEPS: usize = 200;

/// A state as the page draws it. Targets, steps, nodes and whole jobs have the same marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    Failed,
    Blocked,
    Retrying,
    Running,
    Starting,
    Unknown,
    Waiting,
    Succeeded,
    Omitted,
}

impl Mark {
    /// All marks. Marks that need attention come first.
    pub(crate) const ALL: [Self; 9] = [
        Self::Failed,
        Self::Blocked,
        Self::Retrying,
        Self::Running,
        Self::Starting,
        Self::Unknown,
        Self::Waiting,
        Self::Succeeded,
        Self::Omitted,
    ];

    pub(crate) fn of_progress(progress: ShownProgress) -> Self {
        match progress {
            ShownProgress::Pending => Self::Waiting,
            ShownProgress::Processing => Self::Running,
            ShownProgress::Succeeded => Self::Succeeded,
            ShownProgress::Failed => Self::Failed,
            ShownProgress::Unknown => Self::Unknown,
        }
    }

    pub(crate) fn of_target(target: &TargetView) -> Self {
        match target.progress {
            _ if target.next_attempt.is_some() => Self::Retrying,
            _ if target.is_blocked() => Self::Blocked,
            progress => Self::of_progress(progress),
        }
    }

    pub(crate) fn of_unit(state: ShownState) -> Self {
        match state {
            ShownState::Failed => Self::Failed,
            ShownState::Blocked => Self::Blocked,
            ShownState::Retrying => Self::Retrying,
            ShownState::Running => Self::Running,
            ShownState::Pending => Self::Starting,
            ShownState::Unknown => Self::Unknown,
            ShownState::Waiting => Self::Waiting,
            ShownState::Succeed => Self::Succeeded,
            ShownState::Omitted => Self::Omitted,
        }
    }

    /// Returns the mark of a JobFlow or DaemonJob, from a word of the API.
    pub(crate) fn of_flow(state: &str) -> Self {
        match state {
            "Pending" => Self::Waiting,
            "Running" | "Terminating" => Self::Running,
            "Succeed" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Unknown,
        }
    }

    /// Returns true if a person should look at an object in this state.
    pub(crate) fn needs_attention(self) -> bool {
        matches!(self, Self::Failed | Self::Blocked | Self::Retrying)
    }

    /// Returns the end of the ids and classes of the mark.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Retrying => "retrying",
            Self::Running => "running",
            Self::Starting => "starting",
            Self::Unknown => "unknown",
            Self::Waiting => "waiting",
            Self::Succeeded => "succeeded",
            Self::Omitted => "omitted",
        }
    }

    /// Returns the shape in a square of 10 units.
    fn shape(self) -> &'static str {
        match self {
            Self::Failed => "M2 2L8 8M8 2L2 8",
            Self::Blocked => "M5 .6L9.4 5L5 9.4L.6 5Z",
            Self::Retrying => "M8.2 5A3.2 3.2 0 1 1 6.6 2.2M6 .4L7 2.5L4.8 3.4",
            Self::Running => "M2.2 1.4L8.6 5L2.2 8.6Z",
            Self::Starting => "M2.8 2.2L7.8 5L2.8 7.8Z",
            Self::Unknown => "M3 3.4A2 2 0 1 1 5 5.6V6.6M5 8.2V8.8",
            Self::Waiting => "M5 3.6A1.4 1.4 0 1 1 4.99 3.6Z",
            Self::Succeeded => "M1.5 1.5H8.5V8.5H1.5Z",
            Self::Omitted => "M2.5 5H7.5",
        }
    }

    /// Returns the icon. The text beside the icon says the state, so the icon has no text of its own.
    pub(crate) fn icon(self) -> Markup {
        html! { svg class="mark" viewBox="0 0 10 10" aria-hidden="true" { use href={ "#g-" (self.key()) } {} } }
    }

    /// Returns the icon with a word for the state.
    pub(crate) fn with_word(self, word: &str) -> Markup {
        html! { span class={ "state s-" (self.key()) } { (self.icon()) (word) } }
    }
}

/// Returns the shapes and patterns that every document needs once.
pub(crate) fn definitions() -> Markup {
    html! {
        svg class="defs" aria-hidden="true" focusable="false" {
            defs {
                @for mark in Mark::ALL {
                    @let key = mark.key();
                    path id={ "g-" (key) } class={ "k-" (key) } d=(mark.shape()) {}
                    pattern id={ "p-" (key) } width="10" height="10" patternUnits="userSpaceOnUse" {
                        use href={ "#g-" (key) } {}
                    }
                    pattern id={ "b-" (key) } width="6" height="6" patternUnits="userSpaceOnUse" {
                        rect class={ "f-" (key) } width="6" height="6" {}
                        (PreEscaped(hatch(mark)))
                    }
                }
            }
        }
    }
}

/// Returns the lines on a part of a bar. A part without lines is solid, or empty.
fn hatch(mark: Mark) -> &'static str {
    match mark {
        Mark::Failed => r#"<path class="hatch" d="M0 0L6 6M6 0L0 6"/>"#,
        Mark::Blocked | Mark::Retrying => r#"<path class="hatch" d="M0 1.5H6M0 4.5H6"/>"#,
        Mark::Running | Mark::Starting => r#"<path class="hatch" d="M-1.5 1.5L1.5 -1.5M0 6L6 0M4.5 7.5L7.5 4.5"/>"#,
        Mark::Unknown | Mark::Omitted => r#"<path class="hatch" d="M1.5 0V6M4.5 0V6"/>"#,
        Mark::Waiting | Mark::Succeeded => "",
    }
}

/// The parts of a progress bar, in the order in which they are drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bar {
    parts: Vec<(Mark, usize)>,
    text: String,
}

impl Bar {
    pub(crate) fn of_targets(counts: &ShownCounts) -> Self {
        let parts = vec![
            (Mark::Succeeded, counts.succeeded),
            (Mark::Failed, counts.failed),
            (Mark::Running, counts.in_flight),
            (Mark::Waiting, counts.pending),
        ];
        Self { parts, text: format!("{}% of {}: {}", counts.percent(), counts.total, counts.sentence()) }
    }

    pub(crate) fn of_units(counts: &UnitCounts) -> Self {
        let parts = vec![
            (Mark::Succeeded, counts.succeeded),
            (Mark::Failed, counts.failed),
            (Mark::Blocked, counts.blocked.saturating_add(counts.retrying)),
            (Mark::Running, counts.running.saturating_add(counts.pending)),
            (Mark::Waiting, counts.waiting),
            (Mark::Omitted, counts.omitted),
        ];
        // An omitted unit never runs, so it is no part of the whole.
        let whole = counts.total.saturating_sub(counts.omitted);
        let done = counts.succeeded.saturating_add(counts.failed);
        let percent = done.saturating_mul(100).checked_div(whole).unwrap_or(0).min(100);
        let note = if counts.omitted > 0 { " (not counted)" } else { "" };
        Self { parts, text: format!("{percent}% of {whole}: {}{note}", counts.sentence()) }
    }

    /// Returns the numbers in words.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the bar, whose text alternative has the numbers.
    pub(crate) fn svg(&self) -> Markup {
        let count = |at: usize| self.parts.get(at).map_or(0, |(_, count)| *count);
        let lengths = shares([0, 1, 2, 3, 4, 5].map(count), STEPS);
        let has_parts = self.parts.iter().any(|(_, count)| *count > 0);
        let mut start = 0;
        let drawn = self.parts.iter().zip(lengths).filter_map(|((mark, _), length)| {
            let from = start;
            start += length;
            (has_parts && length > 0).then_some((*mark, from, length))
        });
        html! {
            svg class="bar" role="img" aria-label=(self.text) {
                @for (mark, from, length) in drawn {
                    rect x=(percent(from)) width=(percent(length)) height="100%" fill={ "url(#b-" (mark.key()) ")" } {}
                }
            }
        }
    }
}

fn percent(steps: usize) -> String {
    if steps.is_multiple_of(2) { format!("{}%", steps / 2) } else { format!("{}.5%", steps / 2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_marks_have_one_shape() {
        let shapes: std::collections::BTreeSet<&str> = Mark::ALL.into_iter().map(Mark::shape).collect();
        assert_eq!(shapes.len(), Mark::ALL.len());
    }

    #[test]
    fn the_parts_of_a_bar_fill_it_and_the_smallest_one_is_seen() {
        let counts = ShownCounts { total: 10_000, succeeded: 9_998, failed: 1, in_flight: 1, pending: 0 };
        let svg = Bar::of_targets(&counts).svg().into_string();
        assert_eq!(svg.matches("<rect").count(), 3, "{svg}");
        assert!(svg.contains(r#"x="99%" width="0.5%""#) && svg.contains(r#"x="99.5%" width="0.5%""#), "{svg}");
        let none = Bar::of_targets(&ShownCounts::default()).svg().into_string();
        assert_eq!(none.matches("<rect").count(), 0, "{none}");
    }
}
