//! One frame: head, table and hints. Its cost is that of the rows it shows.

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

/// Lines below the head that a table needs: its header, three targets, and the hints.
const TABLE_LINES: u16 = 5;
/// A frame of this height has lines for all that is known of the chosen target.
const TALL: u16 = 16;
/// Lines for the chosen target.
const CHOSEN_LINES: usize = 2;
/// A frame of this width has a column of times.
const WIDE: u16 = 60;
/// Columns of a state, such as `In flight` or `Succeeded`, and of a time.
const STATE: u16 = 9;
const SPAN: u16 = 6;

/// Draws `screen` into the whole of `frame`.
pub fn draw(frame: &mut Frame<'_>, screen: &mut JobScreen, moment: &Moment) {
    let area = frame.area();
    let width = usize::from(area.width);
    let room = usize::from(area.height.saturating_sub(TABLE_LINES).min(area.height.div_ceil(2)).max(1));
    let head = head(screen.job(), moment, width, room);
    let chosen = if area.height >= TALL { chosen(screen, moment, width) } else { Vec::new() };
    let lines = |lines: &[Line<'_>]| Constraint::Length(u16::try_from(lines.len()).unwrap_or(u16::MAX));
    let [top, middle, below, bottom] =
        Layout::vertical([lines(&head), Constraint::Fill(1), lines(&chosen), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(head), top);
    let shown = table(frame, screen, moment, middle);
    frame.render_widget(Paragraph::new(chosen), below);
    frame.render_widget(Paragraph::new(hints(screen, shown, width)), bottom);
}

/// All that is known of the chosen target: a table cuts it.
fn chosen(screen: &JobScreen, moment: &Moment, width: usize) -> Vec<Line<'static>> {
    let Some((_, target)) = screen.chosen() else { return Vec::new() };
    let text = format!("{} {}: {}", target.label(), target.state(), target.detail(moment.now));
    let text = text.trim_end_matches([':', ' ']).to_owned();
    let mut lines = vec![Line::styled("-".repeat(width), Style::new().add_modifier(Modifier::DIM))];
    lines.extend(wrapped(&escaped(&text), width, CHOSEN_LINES).into_iter().map(Line::from));
    // The table keeps its height, whichever target is chosen.
    lines.resize(CHOSEN_LINES + 1, Line::default());
    lines
}

/// Draws the table, and yields the places of its first and its last row, from 1.
fn table(frame: &mut Frame<'_>, screen: &mut JobScreen, moment: &Moment, area: Rect) -> (usize, usize) {
    let chosen = screen.chosen().map(|(place, _)| place);
    let room = usize::from(area.height.saturating_sub(1));
    let (first, targets) = screen.visible(room);
    let labels: Vec<String> = targets.iter().map(|target| escaped(&target.label()).into_owned()).collect();
    let longest = labels.iter().map(|label| label.width()).max().unwrap_or(0).max("TARGET".len());
    let name = longest.min(usize::from(area.width).saturating_mul(45) / 100).max(1);
    let wide = area.width >= WIDE;
    let span = if wide { SPAN } else { 0 };
    let name_width = u16::try_from(name).unwrap_or(u16::MAX);
    let gaps = if wide { 3 } else { 2 };
    let rest = area.width.saturating_sub(name_width.saturating_add(STATE).saturating_add(span).saturating_add(gaps));
    let mut widths = vec![Constraint::Length(name_width), Constraint::Length(STATE)];
    widths.extend(wide.then_some(Constraint::Length(SPAN)));
    widths.push(Constraint::Length(rest));
    let rows = targets.iter().zip(&labels).enumerate().map(|(at, (target, label))| {
        let mut cells = vec![Cell::from(cut_middle(label, name).into_owned()), Cell::from(target.state())];
        cells.extend(wide.then(|| Cell::from(target.span(moment.now).unwrap_or_default())));
        let detail = target.detail(moment.now);
        cells.push(Cell::from(cut_end(&escaped(&detail), usize::from(rest)).into_owned()));
        let style = style(target);
        Row::new(cells).style(if Some(first + at) == chosen { style.add_modifier(Modifier::REVERSED) } else { style })
    });
    let mut header = vec!["TARGET", "STATE"];
    header.extend(wide.then_some("FOR"));
    header.push("");
    let header = Row::new(header).style(Style::new().add_modifier(Modifier::BOLD));
    let last = first + targets.len();
    frame.render_widget(Table::new(rows.collect::<Vec<_>>(), widths).header(header).column_spacing(1), area);
    (if last == first { 0 } else { first + 1 }, last)
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

fn hints(screen: &JobScreen, (first, last): (usize, usize), width: usize) -> Line<'static> {
    let place = format!("{} {first}-{last} of {}", screen.filter().word(), screen.len());
    let keys = ["f filter", "q leave", "arrows PgUp PgDn Home End scroll"];
    let mut text = place;
    for key in keys {
        if text.width() + 3 + key.len() <= width {
            text = format!("{text} | {key}");
        }
    }
    Line::styled(cut_end(&text, width).into_owned(), Style::new().add_modifier(Modifier::DIM))
}
