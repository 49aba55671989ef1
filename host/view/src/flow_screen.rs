//! The screen of a JobFlow or a DaemonJob. It shows the graph if the graph fits, and otherwise the units, with units that need attention
//! first.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::flow_graph::FlowGraph;
use crate::flow_plain::{progress, word};
use crate::flow_text::drawing;
use crate::flow_view::{FlowKind, FlowView};
use crate::frame::{ShownRow, TABLE_LINES, TALL, chosen_lines, hint_line, table};
use crate::head::{Part, Sentence, bar, numbers, said, title};
use crate::rows::Rows;
use crate::screen::{Connection, Filter, Keypress, Moment, Reaction};
use crate::shown_text::{cut_end, escaped};
use crate::span_text::{between, span};
use crate::unit_state::ShownState;
use crate::unit_view::UnitView;

/// The hint for the key that switches between graph and table.
const GRAPH_KEY: &str = "d graph or table";

/// The screen of one JobFlow or DaemonJob on a terminal.
#[derive(Clone, Debug, Default)]
pub struct FlowScreen {
    view: FlowView,
    filter: Filter,
    rows: Rows,
    /// True if the user wants the table even if the graph fits.
    wants_table: bool,
}

impl FlowScreen {
    /// Returns the screen of a view, scrolled to the top.
    pub fn new(view: FlowView) -> Self {
        let mut screen = Self::default();
        screen.update(view);
        screen
    }

    /// Takes a newer view.
    pub fn update(&mut self, view: FlowView) {
        self.view = view;
        self.admit();
    }

    /// Returns the view that the screen shows.
    pub fn view(&self) -> &FlowView {
        &self.view
    }

    /// Handles a key.
    pub fn press(&mut self, key: Keypress) -> Reaction {
        match key {
            Keypress::Leave => return Reaction::Leave,
            Keypress::Drawing => self.wants_table = !self.wants_table,
            Keypress::Filter => {
                self.filter = self.filter.next();
                self.rows.go_home();
                self.admit();
            }
            _ => self.rows.press(key),
        }
        Reaction::Redraw
    }

    fn admit(&mut self) {
        let filter = self.filter;
        let admitted = self.view.by_need().filter(|unit| admits(filter, unit.state));
        self.rows.set(admitted.map(|unit| unit.index).collect());
    }

    /// Returns the graph if the user wants it and it fits.
    fn graph(&self, room: usize, width: usize, moment: &Moment) -> Option<Vec<Line<'static>>> {
        let is_asked = self.view.kind == FlowKind::JobFlow && self.filter == Filter::All && !self.wants_table;
        if !is_asked || self.view.units().is_empty() || self.view.units().len() > room {
            return None;
        }
        let graph = FlowGraph::new(&self.view);
        let mut lines: Vec<Line<'static>> = graph
            .faults()
            .iter()
            .map(|fault| Line::styled(cut_end(fault, width).into_owned(), Style::new().fg(Color::Red)))
            .collect();
        lines.push(Line::default());
        let style = |state: Option<ShownState>| state.map(ShownState::style).unwrap_or_default();
        let drawn = drawing(&graph, width, moment.now).into_iter();
        lines.extend(drawn.map(|(line, state)| Line::styled(line, style(state))));
        (lines.len() <= room).then_some(lines)
    }
}

fn admits(filter: Filter, state: ShownState) -> bool {
    match filter {
        Filter::All => true,
        Filter::NeedsEyes => state.is_active() || matches!(state, ShownState::Failed | ShownState::Blocked),
        Filter::InFlight => state.is_active(),
        Filter::Failed => state == ShownState::Failed,
        Filter::Pending => matches!(state, ShownState::Waiting | ShownState::Blocked),
        Filter::Succeeded => state == ShownState::Succeed,
    }
}

/// Draws `screen` into the whole of `frame`.
pub fn draw_flow(frame: &mut Frame<'_>, screen: &mut FlowScreen, moment: &Moment) {
    let area = frame.area();
    let width = usize::from(area.width);
    let room = usize::from(area.height.saturating_sub(TABLE_LINES).min(area.height.div_ceil(2)).max(1));
    let head = head(&screen.view, moment, width, room);
    let lines = |count: usize| Constraint::Length(u16::try_from(count).unwrap_or(u16::MAX));
    let below = usize::from(area.height).saturating_sub(head.len() + 1);
    if let Some(graph) = screen.graph(below, width, moment) {
        let [top, middle, bottom] =
            Layout::vertical([lines(head.len()), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
        frame.render_widget(Paragraph::new(head), top);
        frame.render_widget(Paragraph::new(graph), middle);
        let place = format!("{} {}s", screen.view.units().len(), screen.view.kind.unit());
        frame.render_widget(Paragraph::new(hint_line(&place, &["f filter", "q leave", GRAPH_KEY], width)), bottom);
        return;
    }
    let chosen = screen.rows.chosen().and_then(|(_, index)| screen.view.units().get(index));
    let text = chosen.map(|unit| format!("{} {}: {}", unit.name, unit.state.word(), unit.detail()));
    let chosen = if area.height >= TALL { chosen_lines(text.as_deref(), width) } else { Vec::new() };
    let sizes = [lines(head.len()), Constraint::Fill(1), lines(chosen.len()), Constraint::Length(1)];
    let [top, middle, under, bottom] = Layout::vertical(sizes).areas(area);
    frame.render_widget(Paragraph::new(head), top);
    let (first, last) = units(frame, screen, moment, middle);
    frame.render_widget(Paragraph::new(chosen), under);
    let place = format!("{} {first}-{last} of {}", screen.filter.word(), screen.rows.len());
    let mut keys = vec!["f filter", "q leave"];
    keys.extend((screen.view.kind == FlowKind::JobFlow).then_some(GRAPH_KEY));
    keys.push("arrows PgUp PgDn Home End scroll");
    frame.render_widget(Paragraph::new(hint_line(&place, &keys, width)), bottom);
}

/// Draws the table of the units. Returns the places of its first and its last row, counted from 1.
fn units(frame: &mut Frame<'_>, screen: &mut FlowScreen, moment: &Moment, area: Rect) -> (usize, usize) {
    let chosen = screen.rows.chosen().map(|(place, _)| place);
    let room = usize::from(area.height.saturating_sub(1));
    let header = screen.view.kind.unit().to_uppercase();
    let (first, indexes) = screen.rows.visible(room);
    let row = |unit: &UnitView| ShownRow {
        label: escaped(&unit.name).into_owned(),
        state: unit.state.word(),
        span: unit.span(moment.now),
        detail: unit.detail(),
        style: unit.state.style(),
    };
    let rows: Vec<ShownRow> = indexes.iter().filter_map(|index| screen.view.units().get(*index)).map(row).collect();
    let last = first + rows.len();
    table(frame, area, &header, &rows, chosen.and_then(|chosen| chosen.checked_sub(first)));
    (if last == first { 0 } else { first + 1 }, last)
}

/// Returns at most `room` lines: the object, its bar, its numbers, and messages for the user.
fn head(view: &FlowView, moment: &Moment, width: usize, room: usize) -> Vec<Line<'static>> {
    let style = match view.state.as_str() {
        "Succeed" => Style::new().fg(Color::Green),
        "Failed" => Style::new().fg(Color::Red),
        _ => Style::new().fg(Color::Cyan),
    };
    let name = format!("{} {}/{}", view.kind.word(), view.namespace, view.name);
    let mut lines = vec![title(&name, &word(view), style, width)];
    let mut told = Vec::new();
    if let Connection::Lost { cause, lasting } = &moment.connection {
        let text = format!("disconnected for {}, asking again: {cause}", span(*lasting));
        told.push(Sentence { text, style: Style::new().fg(Color::Red).add_modifier(Modifier::BOLD) });
    }
    let notices = view.notices.iter().map(|notice| format!("{}: {}", notice.reason, notice.message));
    told.extend(
        notices.chain(view.missing_detail()).map(|text| Sentence { text, style: Style::new().fg(Color::Yellow) }),
    );
    let waiting = Some(view.waiting.clone()).filter(|text| !text.is_empty());
    told.extend(waiting.map(|text| Sentence { text, style: Style::new() }));
    let age = between(view.created, Some(moment.now)).map(|age| format!("age {age}"));
    let took = between(view.started, Some(view.ended.unwrap_or(moment.now)));
    let about: Vec<String> =
        [Some(progress(view)), took.map(|took| format!("for {took}")), age].into_iter().flatten().collect();
    lines.push(Line::from(cut_end(&escaped(&about.join(", ")), width).into_owned()));
    let parts = parts(view);
    lines.extend([bar(&parts, view.counts.percent(), width), numbers(&parts, width, "nothing to run")]);
    lines.extend(said(told, width, room.saturating_sub(lines.len())));
    lines.truncate(room);
    lines
}

/// Returns the parts of the bar.
fn parts(view: &FlowView) -> [Part; 6] {
    let counts = view.counts;
    let active = counts.pending.saturating_add(counts.running).saturating_add(counts.retrying);
    [
        Part { count: counts.succeeded, sign: "=", word: "succeeded", style: ShownState::Succeed.style() },
        Part { count: counts.failed, sign: "!", word: "failed", style: ShownState::Failed.style() },
        Part { count: active, sign: ">", word: "in flight", style: ShownState::Running.style() },
        Part { count: counts.blocked, sign: "?", word: "blocked", style: ShownState::Blocked.style() },
        Part { count: counts.waiting, sign: ".", word: "waiting", style: Style::new().add_modifier(Modifier::DIM) },
        Part { count: counts.omitted, sign: "-", word: "omitted", style: ShownState::Omitted.style() },
    ]
}
