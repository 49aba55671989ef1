//! A graph of steps as text: one line for each step, below its dependencies, with lanes that lead to it.
//!
//! A lane leads down from a step to the last step that depends on it. `├` and `┼` join the lane and continue it. `╰` and `┴` join the lane
//! and end it, and `│` within a line only crosses it. If lanes take too much room, each step shows the names of its dependencies instead.

use k8s_openapi::jiff::Timestamp;
use unicode_width::UnicodeWidthStr as _;

use crate::flow_graph::FlowGraph;
use crate::shown_text::{cut_end, cut_middle, escaped};
use crate::unit_state::ShownState;
use crate::unit_view::{StepWhen, UnitView};

/// The most lanes. Each lane takes two columns.
const MOST_LANES: usize = 12;
/// The columns besides lanes, name and state: arrow, symbol, gaps and a duration.
const BESIDE: usize = 24;
/// The most columns of a name.
const MOST_NAME: usize = 36;

/// One line of a drawing, with the state that determines its colour.
pub(crate) type DrawnLine = (String, Option<ShownState>);

/// Returns the whole drawing for `width` columns, with a heading and a legend.
pub fn graph_text(graph: &FlowGraph<'_>, width: usize, now: Timestamp) -> String {
    let mut lines = vec![cut_end(&graph.heading(now).join("  "), width).into_owned()];
    lines.extend(graph.faults.iter().map(|fault| cut_end(fault, width).into_owned()));
    lines.push(String::new());
    lines.extend(drawing(graph, width, now).into_iter().map(|(line, _)| line));
    if graph.steps.is_empty() && graph.finally.is_empty() {
        lines.push("no steps".to_owned());
    }
    let used = |state: &ShownState| graph.view.units().iter().any(|unit| unit.state == *state);
    let legend: Vec<String> =
        ShownState::ALL.into_iter().filter(used).map(|state| format!("{} {}", state.symbol(), state.word())).collect();
    if !legend.is_empty() && !graph.view.uid.is_empty() {
        lines.extend([String::new(), cut_end(&legend.join("  "), width).into_owned()]);
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns the lines of the steps only.
pub(crate) fn drawing(graph: &FlowGraph<'_>, width: usize, now: Timestamp) -> Vec<DrawnLine> {
    let rows: Vec<usize> = graph.layers.layers.iter().flatten().copied().collect();
    let names = graph.view.units().iter().map(|unit| escaped(&unit.name).width());
    let name = names.max().unwrap_or(0).min(MOST_NAME).min(width / 2);
    let state = graph.view.units().iter().map(|unit| unit.state.word().len()).max().unwrap_or(0);
    let columns = Columns { name, state, width, now };
    let mut lines = Vec::new();
    let room = width.saturating_sub(name + state + BESIDE) / 2;
    let lanes = lanes(graph, &rows, room.min(MOST_LANES));
    for (row, step) in rows.iter().enumerate() {
        let Some(unit) = graph.steps.get(*step) else { continue };
        let (before, after) = match &lanes {
            Some(lanes) => (lanes.get(row).cloned().unwrap_or_default(), String::new()),
            None => {
                (format!("{:>3} ", graph.layers.layer_of.get(*step).map_or(0, |layer| layer + 1)), after(graph, *step))
            }
        };
        lines.push((columns.line(&before, unit, &[&in_cycle(graph, *step), &after]), Some(unit.state)));
    }
    lines.extend(finally(graph, columns));
    lines
}

/// The widths of the columns of each line.
#[derive(Clone, Copy)]
struct Columns {
    name: usize,
    state: usize,
    width: usize,
    now: Timestamp,
}

impl Columns {
    /// Returns the line of a unit, such as `✓ build    Succeed  12s    retry 1; after a, b`.
    fn line(&self, before: &str, unit: &UnitView, notes: &[&str]) -> String {
        let name = escaped(&unit.name).into_owned();
        let name = cut_middle(&name, self.name).into_owned();
        let gap = " ".repeat(self.name.saturating_sub(name.width()));
        let span = unit.span(self.now).unwrap_or_default();
        let detail = unit.detail();
        let notes: Vec<&str> = notes.iter().copied().chain([detail.as_str()]).filter(|note| !note.is_empty()).collect();
        let (symbol, state) = (unit.state.symbol(), unit.state.word());
        let text = format!(
            "{before}{symbol} {name}{gap}  {state:<size$}  {span:<6}  {}",
            escaped(&notes.join("; ")),
            size = self.state
        );
        cut_end(text.trim_end(), self.width).into_owned()
    }
}

/// Returns the dependencies of a step in words, such as `after a, b` or `on failure of a`.
fn after(graph: &FlowGraph<'_>, step: usize) -> String {
    let names = graph.dependencies.get(step).into_iter().flatten();
    let names: Vec<&str> = names.filter_map(|on| graph.steps.get(*on)).map(|on| on.name.as_str()).collect();
    let of = graph.steps.get(step);
    let words = match of.map(|step| step.when) {
        _ if names.is_empty() => return String::new(),
        Some(StepWhen::Failure) if of.is_some_and(|step| step.handles_failure) => "makes up for a failure of",
        Some(StepWhen::Failure) => "on failure of",
        Some(StepWhen::Finished) => "after any end of",
        _ => "after",
    };
    format!("{words} {}", names.join(", "))
}

/// Returns a note that a step is in a cycle, with the step that it depends on in the cycle. No lane leads up to that step.
fn in_cycle(graph: &FlowGraph<'_>, step: usize) -> String {
    let mut on = graph.dependencies.get(step).into_iter().flatten();
    let on = on.find(|on| graph.is_in_cycle(step, **on)).and_then(|on| graph.steps.get(*on));
    on.map(|on| format!("in a cycle, after {}", on.name)).unwrap_or_default()
}

/// Returns the lanes before each row, all with the same width. Returns `None` if the lanes would be more than `most`.
fn lanes(graph: &FlowGraph<'_>, rows: &[usize], most: usize) -> Option<Vec<String>> {
    let last = last_rows(graph, rows)?;
    let ends_at = |source: usize| last.get(source).copied().flatten();
    let mut lanes: Vec<Option<usize>> = Vec::new();
    let mut drawn: Vec<(Vec<char>, &str)> = Vec::new();
    for (row, step) in rows.iter().enumerate() {
        let mine = ends_at(*step).map(|_| {
            let free = lanes.iter().position(Option::is_none).unwrap_or(lanes.len());
            if free == lanes.len() {
                lanes.push(None);
            }
            free
        });
        let on = graph.dependencies.get(*step)?;
        let has_on = lanes.iter().flatten().any(|source| on.contains(source));
        let line = line(&lanes, mine, on, |source| ends_at(source) == Some(row));
        let when = graph.steps.get(*step)?.when;
        drawn.push((line, if has_on && when != StepWhen::Success { when.word() } else { "" }));
        for lane in &mut lanes {
            *lane = lane.filter(|source| ends_at(*source) != Some(row));
        }
        if let Some(lane) = mine.and_then(|mine| lanes.get_mut(mine)) {
            *lane = Some(*step);
        }
        if lanes.len() > most {
            return None;
        }
    }
    let words = drawn.iter().map(|(_, word)| word.len()).max().unwrap_or(0);
    let words = if words > 0 { words + 1 } else { 0 };
    Some(drawn.into_iter().map(|(line, word)| padded(line, word, lanes.len(), words)).collect())
}

/// Returns the last row of the lane of each step that has a lane. A dependency that closes a cycle leads up and has no lane.
fn last_rows(graph: &FlowGraph<'_>, rows: &[usize]) -> Option<Vec<Option<usize>>> {
    let count = graph.steps.len();
    let mut row_of = vec![0; count];
    for (row, step) in rows.iter().enumerate() {
        *row_of.get_mut(*step)? = row;
    }
    let mut last = vec![None; count];
    for (step, on) in graph.dependencies.iter().enumerate() {
        for dependency in on {
            let (from, to) = (*row_of.get(*dependency)?, *row_of.get(step)?);
            if let Some(last) = last.get_mut(*dependency).filter(|_| from < to) {
                *last = (*last).max(Some(to));
            }
        }
    }
    Some(last)
}

/// Returns the lanes of one row and the tip of its arrow. The step of the row depends on the steps `on` and begins the lane `mine`.
fn line(lanes: &[Option<usize>], mine: Option<usize>, on: &[usize], ends_here: impl Fn(usize) -> bool) -> Vec<char> {
    let joins = |lane: &Option<usize>| lane.is_some_and(|source| on.contains(&source));
    let first = lanes.iter().position(joins);
    let begin = first.into_iter().chain(mine).min();
    let mut line: Vec<char> = Vec::new();
    for (at, lane) in lanes.iter().enumerate() {
        let (alone, crossed) = match lane {
            Some(source) if joins(lane) && ends_here(*source) => ('╰', '┴'),
            _ if joins(lane) => ('├', '┼'),
            _ if Some(at) == mine => ('╭', '┬'),
            Some(_) => ('│', '│'),
            None => (' ', '─'),
        };
        line.push(if begin.is_some_and(|begin| at > begin) { crossed } else { alone });
        line.push(if begin.is_some_and(|begin| at >= begin) { '─' } else { ' ' });
    }
    line.push(match begin {
        _ if first.is_some() => '>',
        Some(_) => '─',
        None => ' ',
    });
    line
}

/// Returns a row of lanes whose arrow extends to the width of all lanes, with the word on the arrow. `words` is the width of the longest
/// word.
fn padded(mut line: Vec<char>, word: &str, lanes: usize, words: usize) -> String {
    let tip = line.pop().filter(|_| lanes > 0);
    let Some(tip) = tip else { return String::new() };
    let fill = if tip == ' ' { ' ' } else { '─' };
    line.resize(lanes * 2, fill);
    line.extend(word.chars());
    line.resize(lanes * 2 + words, fill);
    line.into_iter().chain([tip, ' ']).collect()
}

/// Returns the steps of `finally` in a box.
fn finally(graph: &FlowGraph<'_>, columns: Columns) -> Vec<DrawnLine> {
    if graph.finally.is_empty() {
        return Vec::new();
    }
    let inner = Columns { width: columns.width.saturating_sub(4), ..columns };
    let lines: Vec<DrawnLine> = graph
        .finally
        .iter()
        .map(|unit| {
            let when =
                if unit.when == StepWhen::Finished { String::new() } else { format!("when: {}", unit.when.word()) };
            (inner.line("", unit, &[&when]), Some(unit.state))
        })
        .collect();
    let size = lines.iter().map(|(line, _)| line.width()).max().unwrap_or(0).max("─ finally ".width());
    let top = format!("╭─ finally {}╮", "─".repeat((size + 2).saturating_sub(10)));
    let bottom = format!("╰{}╯", "─".repeat(size + 2));
    let boxed = lines.into_iter().map(|(line, state)| {
        let gap = " ".repeat(size.saturating_sub(line.width()));
        (format!("│ {line}{gap} │"), state)
    });
    let gap = (!graph.steps.is_empty()).then(|| (String::new(), None));
    gap.into_iter().chain([(top, None)]).chain(boxed).chain([(bottom, None)]).collect()
}
