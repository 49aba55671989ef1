//! The graph of a JobFlow as a drawing: a column for each layer, a box for each step, and a curve for each dependency.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::html;
use oarlock_view::{FlowGraph, StepWhen, UnitView, cut_end, cut_middle, escaped};

use crate::mark::Mark;
use crate::page_content::{Fragment, FragmentList};
use crate::text_html::label;

/// The size of a box, and the room between boxes.
const WIDTH: usize = 214;
const HEIGHT: usize = 40;
const GAP_X: usize = 60;
const GAP_Y: usize = 14;
/// The room around the drawing.
const EDGE: usize = 16;
/// The room below the boxes for the curves of a cycle.
const BACK: usize = 44;
/// The columns of a name in a box.
const NAME: usize = 22;
/// The columns of the words below a name.
const WORDS: usize = 28;
/// The most dependencies that are drawn.
const MOST_CURVES: usize = 3_000;

/// The places of the steps.
struct Drawing<'a> {
    graph: &'a FlowGraph<'a>,
    /// The left and upper edge of each step of `flows`, in drawing units.
    places: Vec<Place>,
    /// The places of the steps of `finally`.
    last: Vec<Place>,
    /// False for the steps whose dependencies have no room among [`MOST_CURVES`].
    drawn: Vec<bool>,
    width: usize,
    height: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    x: usize,
    y: usize,
}

/// Returns the section with the drawing. Each box is a fragment, and so are the curves to each layer, so that a step that changes costs
/// little. `link` returns the address of a step's row.
pub(crate) fn section(graph: &FlowGraph<'_>, link: &dyn Fn(usize) -> String) -> FragmentList {
    let drawing = Drawing::new(graph);
    let curves: usize = (0..graph.steps().len()).map(|step| graph.dependencies(step).len()).sum();
    let before = html! {
        h2 id="graph-title" { "Graph" }
        @for fault in graph.faults().iter().take(20) { p class="notice" { (label(fault)) } }
        @if graph.steps().is_empty() && graph.finally().is_empty() { p class="muted" { "The flow has no steps." } }
        @else { p class="muted" { "Each step is at the right of the steps that it depends on. The table below has the same steps." } }
        @if curves > MOST_CURVES { p class="muted" { "The drawing has " (MOST_CURVES) " of " (curves) " dependencies." } }
    };
    let Drawing { width, height, .. } = drawing;
    let svg = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-labelledby=\"graph-title\"><svg class=\"flow\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"group\" aria-label=\"Graph of {} steps\"><g id=\"graph\">",
        graph.steps().len()
    );
    FragmentList {
        id: "graph",
        before: format!("<section class=\"panel\" aria-labelledby=\"graph-title\">{}{svg}", before.into_string()),
        items: drawing.parts(link),
        after: "</g></svg></div></section>".to_owned(),
    }
}

impl<'a> Drawing<'a> {
    fn new(graph: &'a FlowGraph<'a>) -> Self {
        let rows = ordered(graph);
        let tallest = rows.iter().map(Vec::len).max().unwrap_or(0).max(graph.finally().len());
        let back = if graph.has_cycle() { BACK } else { 0 };
        let height = tallest * (HEIGHT + GAP_Y) + 2 * EDGE + back;
        let place = |column: usize, row: usize, of: usize| {
            let above = (tallest.saturating_sub(of)) * (HEIGHT + GAP_Y) / 2;
            Place { x: EDGE + column * (WIDTH + GAP_X), y: EDGE + above + row * (HEIGHT + GAP_Y) }
        };
        let mut places = vec![Place::default(); graph.steps().len()];
        for (column, steps) in rows.iter().enumerate() {
            for (row, step) in steps.iter().enumerate() {
                if let Some(known) = places.get_mut(*step) {
                    *known = place(column, row, steps.len());
                }
            }
        }
        let count = graph.finally().len();
        let last = (0..count).map(|row| place(rows.len(), row, count)).collect();
        let columns = rows.len() + usize::from(count > 0);
        let mut curves = 0;
        let drawn = (0..graph.steps().len()).map(|step| {
            curves += graph.dependencies(step).len();
            curves <= MOST_CURVES
        });
        Self { graph, places, last, drawn: drawn.collect(), width: columns * (WIDTH + GAP_X) + 2 * EDGE, height }
    }

    fn parts(&self, link: &dyn Fn(usize) -> String) -> Vec<Fragment> {
        let (steps, finally) = (self.graph.steps(), self.graph.finally());
        let mut parts: Vec<Fragment> = Vec::new();
        for (at, layer) in self.graph.layers().iter().enumerate() {
            let curves = self.curves(layer);
            let id = format!("curves-{at}");
            let html =
                html! { g id=(id) { @for (class, path) in curves { path class={ "edge " (class) } d=(path) {} } } };
            parts.push(Fragment { id, html: html.into_string() });
        }
        if let Some(first) = self.last.first() {
            let x = first.x.saturating_sub(GAP_X / 2);
            let html =
                html! { line id="finally" class="finally" x1=(x) x2=(x) y1="4" y2=(self.height.saturating_sub(4)) {} };
            parts.push(Fragment { id: "finally".to_owned(), html: html.into_string() });
        }
        let placed = steps.iter().zip(&self.places).chain(finally.iter().zip(&self.last));
        parts.extend(placed.map(|(step, place)| box_of(step, *place, &link(step.index))));
        parts
    }

    /// Returns the curves to the steps of a layer by their class: dependencies that are satisfied, open, failed, or in a cycle.
    fn curves(&self, layer: &[usize]) -> BTreeMap<&'static str, String> {
        let mut paths: BTreeMap<&'static str, String> = BTreeMap::new();
        let steps = self.graph.steps();
        let pairs = layer.iter().flat_map(|step| self.graph.dependencies(*step).iter().map(|on| (*step, *on)));
        for (step, on) in pairs.filter(|(step, _)| self.drawn.get(*step) == Some(&true)) {
            let (Some(to), Some(from)) = (self.places.get(step), self.places.get(on)) else { continue };
            let class = match steps.get(on).map(|unit| Mark::of_unit(unit.state)) {
                _ if self.graph.is_in_cycle(step, on) => "cycle",
                Some(Mark::Succeeded) => "done",
                Some(Mark::Failed) => "bad",
                _ => "open",
            };
            let (x1, y1, x2, y2) = (from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2);
            let path = paths.entry(class).or_default();
            let _always = if x2 > x1 {
                let bend = GAP_X * 2 / 3;
                write!(path, "M{x1} {y1}C{} {y1} {} {y2} {x2} {y2}", x1 + bend, x2.saturating_sub(bend))
            } else {
                // The curve of a cycle leads back below the boxes.
                let (x1, y1, x2, y2) = (from.x + WIDTH / 2, from.y + HEIGHT, to.x + WIDTH / 2, to.y + HEIGHT);
                let low = y1.max(y2) + BACK;
                write!(path, "M{x1} {y1}C{x1} {low} {x2} {low} {x2} {y2}")
            };
        }
        paths
    }
}

/// Returns the layers, each sorted by the middle of the steps that its steps depend on, so that fewer curves cross.
fn ordered(graph: &FlowGraph<'_>) -> Vec<Vec<usize>> {
    let mut rows: Vec<Vec<usize>> = graph.layers().to_vec();
    let mut row_of = vec![0_usize; graph.steps().len()];
    for steps in &mut rows {
        let middle = |step: &usize| {
            let on = graph.dependencies(*step);
            let sum: usize = on.iter().filter_map(|on| row_of.get(*on)).sum();
            (sum * 100).checked_div(on.len()).unwrap_or(0)
        };
        steps.sort_by_cached_key(middle);
        let count = steps.len();
        for (row, step) in steps.iter().enumerate() {
            if let Some(known) = row_of.get_mut(*step) {
                // Rows count from the middle of their layer, because layers are centred.
                *known = (1_000 + 2 * row).saturating_sub(count);
            }
        }
    }
    rows
}

/// Returns the box of a step, which links to its row of the table.
fn box_of(step: &UnitView, place: Place, link: &str) -> Fragment {
    let mark = Mark::of_unit(step.state);
    let name = escaped(&step.name);
    let cut = cut_middle(&name, NAME);
    let Place { x, y } = place;
    let id = format!("step-{}", step.index);
    let html = html! {
        a id=(id) class={ "step e-" (mark.key()) } href=(link) {
            @if cut != name { title { (label(&step.name)) ": " (words(step)) } }
            rect x=(x) y=(y) width=(WIDTH) height=(HEIGHT) rx="5" {}
            use href={ "#g-" (mark.key()) } transform={ "translate(" (x + 10) " " (y + 9) ") scale(2.2)" } {}
            text class="name" x=(x + 42) y=(y + 17) { (cut) }
            text class="words" x=(x + 42) y=(y + 32) { (cut_end(&words(step), WORDS)) }
        }
    };
    Fragment { id, html: html.into_string() }
}

/// Returns the state, the attempt and the condition of a step, as far as they are not the usual ones.
fn words(step: &UnitView) -> String {
    let mut words = step.state.word().to_owned();
    if step.attempt > 0 {
        words += &format!(", attempt {}", step.attempt.saturating_add(1));
    }
    let usual = if step.is_finally { StepWhen::Finished } else { StepWhen::Success };
    if step.when != usual {
        words += &format!(", on {}", step.when.word());
    }
    words
}
