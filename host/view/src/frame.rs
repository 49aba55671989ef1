//! Draws one frame: head, table and hints. The cost depends only on the shown rows.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use unicode_width::UnicodeWidthStr as _;

use crate::head::head;
use crate::screen::{JobScreen, Moment};
use crate::shown_text::{cut_end, cut_middle, escaped, wrapped};
use crate::target_view::TargetView;

/// The lines below the head that a table needs: its header, three targets, and the hints.
pub(crate) const TABLE_LINES: u16 = 5;
/// The height from which a frame has lines for all details of the chosen target.
pub(crate) const TALL: u16 = 16;
/// The number of lines for the chosen target.
const CHOSEN_LINES: usize = 2;
/// The width from which a frame has a column of durations.
const WIDE: u16 = 60;
/// The columns of a state, such as `In flight` or `Succeeded`, and of a duration.
const STATE: u16 = 9;
const SPAN: u16 = 6;

/// Draws `screen` into the whole of `frame`.
pub fn draw(frame: &mut Frame<'_>, screen: &mut JobScreen, moment: &Moment) {
    let area = frame.area();
    let width = usize::from(area.width);
    let room = usize::from(area.height.saturating_sub(TABLE_LINES).min(area.height.div_ceil(2)).max(1));
    let head = head(screen.job(), moment, width, room);
    let text = screen
        .chosen()
        .map(|(_, target)| format!("{} {}: {}", target.label(), target.state(), target.detail(moment.now)));
    let chosen = if area.height >= TALL { chosen_lines(text.as_deref(), width) } else { Vec::new() };
    let lines = |lines: &[Line<'_>]| Constraint::Length(u16::try_from(lines.len()).unwrap_or(u16::MAX));
    let [top, middle, below, bottom] =
        Layout::vertical([lines(&head), Constraint::Fill(1), lines(&chosen), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(head), top);
    let (first, last) = targets(frame, screen, moment, middle);
    frame.render_widget(Paragraph::new(chosen), below);
    let place = format!("{} {first}-{last} of {}", screen.filter().word(), screen.len());
    let keys = ["f filter", "q leave", "arrows PgUp PgDn Home End scroll"];
    frame.render_widget(Paragraph::new(hint_line(&place, &keys, width)), bottom);
}

/// Returns the lines with all details of the chosen row, which the table shortens.
pub(crate) fn chosen_lines(text: Option<&str>, width: usize) -> Vec<Line<'static>> {
    let Some(text) = text else { return Vec::new() };
    let text = text.trim_end_matches([':', ' ']);
    let mut lines = vec![Line::styled("-".repeat(width), Style::new().add_modifier(Modifier::DIM))];
    lines.extend(wrapped(&escaped(text), width, CHOSEN_LINES).into_iter().map(Line::from));
    // The table keeps its height for every chosen row.
    lines.resize(CHOSEN_LINES + 1, Line::default());
    lines
}

/// Draws the table of targets. Returns the places of its first and its last row, counted from 1.
fn targets(frame: &mut Frame<'_>, screen: &mut JobScreen, moment: &Moment, area: Rect) -> (usize, usize) {
    let chosen = screen.chosen().map(|(place, _)| place);
    let room = usize::from(area.height.saturating_sub(1));
    let (first, targets) = screen.visible(room);
    let row = |target: &&TargetView| ShownRow {
        label: escaped(&target.label()).into_owned(),
        state: target.state(),
        span: target.span(moment.now),
        detail: target.detail(moment.now),
        style: style(target),
    };
    let rows: Vec<ShownRow> = targets.iter().map(row).collect();
    table(frame, area, "TARGET", &rows, chosen.and_then(|chosen| chosen.checked_sub(first)));
    let last = first + rows.len();
    (if last == first { 0 } else { first + 1 }, last)
}

/// A row of a table: a target of a job, a step, a node.
pub(crate) struct ShownRow {
    /// The escaped name.
    pub(crate) label: String,
    pub(crate) state: &'static str,
    pub(crate) span: Option<String>,
    pub(crate) detail: String,
    pub(crate) style: Style,
}

/// Draws a table. `header` is the title of the names, and `chosen` is an index of `rows`.
pub(crate) fn table(frame: &mut Frame<'_>, area: Rect, header: &str, rows: &[ShownRow], chosen: Option<usize>) {
    let longest = rows.iter().map(|row| row.label.width()).max().unwrap_or(0).max(header.width());
    let name = longest.min(usize::from(area.width).saturating_mul(45) / 100).max(1);
    let wide = area.width >= WIDE;
    let span = if wide { SPAN } else { 0 };
    let name_width = u16::try_from(name).unwrap_or(u16::MAX);
    let gaps = if wide { 3 } else { 2 };
    let rest = area.width.saturating_sub(name_width.saturating_add(STATE).saturating_add(span).saturating_add(gaps));
    let mut widths = vec![Constraint::Length(name_width), Constraint::Length(STATE)];
    widths.extend(wide.then_some(Constraint::Length(SPAN)));
    widths.push(Constraint::Length(rest));
    let cells = rows.iter().enumerate().map(|(at, row)| {
        let mut cells = vec![Cell::from(cut_middle(&row.label, name).into_owned()), Cell::from(row.state)];
        cells.extend(wide.then(|| Cell::from(row.span.clone().unwrap_or_default())));
        cells.push(Cell::from(cut_end(&escaped(&row.detail), usize::from(rest)).into_owned()));
        Row::new(cells).style(if Some(at) == chosen { row.style.add_modifier(Modifier::REVERSED) } else { row.style })
    });
    let mut titles = vec![header.to_owned(), "STATE".to_owned()];
    titles.extend(wide.then(|| "FOR".to_owned()));
    titles.push(String::new());
    let titles = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(cells.collect::<Vec<_>>(), widths).header(titles).column_spacing(1), area);
}

fn style(target: &TargetView) -> Style {
    match target.state() {
        "Blocked" | "Retrying" => Style::new().fg(Color::Yellow),
        "In flight" => Style::new().fg(Color::Cyan),
        "Failed" => Style::new().fg(Color::Red),
        "Succeeded" => Style::new().fg(Color::Green),
        _ => Style::new(),
    }
}

/// Returns the line with the place and with the keys for which there is room.
pub(crate) fn hint_line(place: &str, keys: &[&str], width: usize) -> Line<'static> {
    let mut text = place.to_owned();
    for key in keys {
        if text.width() + 3 + key.len() <= width {
            text = format!("{text} | {key}");
        }
    }
    Line::styled(cut_end(&text, width).into_owned(), Style::new().add_modifier(Modifier::DIM))
}
