//! A graph of steps as one SVG file that needs nothing else: layers from left to right, and `finally` in a box of its own.
//!
//! A browser that prefers dark colours draws it in such; each state has a symbol and a word beside its colour.

use k8s_openapi::jiff::Timestamp;

use crate::flow_graph::{FlowGraph, account};
use crate::flow_layout::{BOX, Connector, layout};
use crate::shown_text::{cut_end, cut_middle, escaped};
use crate::unit_view::{StepWhen, UnitView};

/// Room around the drawing, below its head, and within the box of `finally`, in pixels.
const MARGIN: i64 = 28;
const HEAD: i64 = 64;
const FAULT: i64 = 20;
const INNER: i64 = 20;
const FINALLY_GAP: i64 = 64;
const FINALLY_HEAD: i64 = 34;
const ROW: i64 = BOX.1 + 22;
/// Columns of the texts in a box.
const NAME: usize = 23;
const ACCOUNT: usize = 26;

const STYLE: &str = "\
.page{fill:#ffffff}.title{fill:#1f2328;font-size:16px;font-weight:600}.about{fill:#59636e;font-size:13px}
.fault{fill:#d1242f;font-size:13px;font-weight:600}
.line{fill:none;stroke:#8c959f;stroke-width:1.5}.tip{fill:#8c959f}
.line.failure,.line.finished{stroke-dasharray:6 4}.line.cycle{stroke:#d1242f;stroke-width:2.5}.tip.cycle{fill:#d1242f}
.when{fill:#59636e;font-size:11px;font-style:italic}
.finally{fill:none;stroke:#8c959f;stroke-width:1.5;stroke-dasharray:3 4}
.box{stroke-width:1.5}.name{font-size:13px;font-weight:600;fill:#1f2328}.account{font-size:12px;fill:#424a53}
.Succeed .box{fill:#dafbe1;stroke:#1a7f37}.Failed .box{fill:#ffebe9;stroke:#d1242f}
.Running .box{fill:#ddf4ff;stroke:#0969da;stroke-width:2.5}.Pending .box{fill:#ddf4ff;stroke:#0969da;stroke-dasharray:5 3}
.Blocked .box,.Retrying .box{fill:#fff8c5;stroke:#9a6700}
.Waiting .box,.Unknown .box{fill:#f6f8fa;stroke:#8c959f}.Omitted .box{fill:#f6f8fa;stroke:#8c959f;stroke-dasharray:5 3}
.Omitted .name,.Omitted .account{fill:#59636e}.cycle .box{stroke:#d1242f;stroke-width:2.5}
@media (prefers-color-scheme:dark){
.page{fill:#0d1117}.title,.name{fill:#f0f6fc}.about,.when,.account{fill:#b7bdc8}.fault{fill:#ff7b72}
.line{stroke:#7d8590}.tip{fill:#7d8590}.finally{stroke:#7d8590}
.Succeed .box{fill:#12361f;stroke:#3fb950}.Failed .box{fill:#4a1417;stroke:#f85149}
.Running .box,.Pending .box{fill:#0f2d52;stroke:#58a6ff}.Blocked .box,.Retrying .box{fill:#3b2a08;stroke:#d29922}
.Waiting .box,.Unknown .box,.Omitted .box{fill:#1c222b;stroke:#7d8590}.Omitted .name,.Omitted .account{fill:#9198a1}
.line.cycle,.cycle .box{stroke:#f85149}.tip.cycle{fill:#f85149}}
";

/// The SVG file.
pub fn graph_svg(graph: &FlowGraph<'_>, now: Timestamp) -> String {
    let placed = layout(graph);
    let rows = number(graph.finally.len());
    let finally_height = if rows == 0 { 0 } else { FINALLY_HEAD + rows * ROW - (ROW - BOX.1) + INNER };
    let height = placed.height.max(finally_height).max(BOX.1);
    let heads = HEAD + number(graph.faults.len()) * FAULT;
    let gap = if rows == 0 || graph.steps.is_empty() { 0 } else { FINALLY_GAP };
    let finally_width = if rows == 0 { 0 } else { BOX.0 + 2 * INNER };
    let least = graph.faults.iter().map(|fault| fault.chars().count() * 8).max().unwrap_or(0).max(360);
    let width = (placed.width + gap + finally_width).max(number(least)) + 2 * MARGIN;
    let low = heads + height + MARGIN / 2;
    let total = low + if graph.has_cycle() { MARGIN } else { MARGIN / 2 };
    let out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{total}\" viewBox=\"0 0 {width} {total}\" \
         font-family=\"ui-sans-serif,system-ui,-apple-system,'Segoe UI','Liberation Sans','DejaVu Sans',sans-serif\">\n<style>\n\
         {STYLE}</style>\n<rect class=\"page\" width=\"{width}\" height=\"{total}\"/>\n"
    );
    let shift = (MARGIN, heads + (height - placed.height) / 2);
    let mut canvas = Canvas { out, graph, now, shift, low };
    canvas.head();
    let in_cycle = |line: &&Connector| graph.is_in_cycle(line.to, line.from);
    // Those of a cycle lie above the others.
    for line in placed.lines.iter().filter(|line| !in_cycle(line)).chain(placed.lines.iter().filter(in_cycle)) {
        let corner = |step: usize| placed.boxes.get(step).map(|(x, y)| (x + shift.0, y + shift.1)).unwrap_or_default();
        canvas.line(line, corner(line.from), corner(line.to));
    }
    for (at, step) in graph.steps.iter().enumerate() {
        let (x, y) = placed.boxes.get(at).copied().unwrap_or_default();
        let is_entered = graph.dependencies.get(at).is_some_and(|on| !on.is_empty());
        let class = if graph.is_on_cycle(at) { " cycle" } else { "" };
        canvas.step(step, (x + shift.0, y + shift.1), is_entered && step.when != StepWhen::Success, class);
    }
    if rows > 0 {
        let right = MARGIN + placed.width;
        if gap > 0 {
            canvas.barrier(right + 20, (shift.1, placed.height), right + gap);
        }
        let top = heads + (height - finally_height) / 2;
        canvas.finally((right + gap, top), (finally_width, finally_height));
    }
    canvas.out + "</svg>\n"
}

/// What is drawn, and where.
struct Canvas<'a> {
    out: String,
    graph: &'a FlowGraph<'a>,
    now: Timestamp,
    /// Place of the left upper corner of the steps.
    shift: (i64, i64),
    /// Height below all boxes, where lines lead back.
    low: i64,
}

impl Canvas<'_> {
    fn put(&mut self, text: &str) {
        self.out += text;
        self.out.push('\n');
    }

    fn head(&mut self) {
        let mut parts = self.graph.heading(self.now);
        let title = if parts.is_empty() { String::new() } else { markup(&parts.remove(0)) };
        let steps = format!("{} steps", self.graph.view.units().len());
        let about = markup(&if parts.is_empty() { steps } else { parts.join(" · ") });
        self.put(&format!("<title>{title}</title>\n<text class=\"title\" x=\"{MARGIN}\" y=\"30\">{title}</text>"));
        self.put(&format!("<text class=\"about\" x=\"{MARGIN}\" y=\"50\">{about}</text>"));
        for (row, fault) in (1_i64..).zip(&self.graph.faults) {
            let y = 50 + row * FAULT;
            self.put(&format!("<text class=\"fault\" x=\"{MARGIN}\" y=\"{y}\">{}</text>", markup(fault)));
        }
    }

    /// A line from the right side of one box through its bends to the left side of another.
    fn line(&mut self, line: &Connector, from: (i64, i64), to: (i64, i64)) {
        let in_cycle = self.graph.is_in_cycle(line.to, line.from);
        let when = self.graph.steps.get(line.to).map(|step| step.when).unwrap_or_default();
        let mut class = if when == StepWhen::Success { String::new() } else { format!(" {}", when.word()) };
        class += if in_cycle { " cycle" } else { "" };
        let (start, end) = ((from.0 + BOX.0, from.1 + BOX.1 / 2), (to.0 - 8, to.1 + BOX.1 / 2));
        let mut path = format!("M{} {}", start.0, start.1);
        if end.0 < start.0 {
            // It closes a cycle.
            let low = self.low;
            let turn = (start.0 + 24, start.0 - 16, to.0 + 12, to.0 - 24);
            path += &format!("C{0} {1} {0} {low} {2} {low}H{3}", turn.0, start.1, turn.1, turn.2);
            path += &format!("C{0} {low} {0} {1} {2} {1}", turn.3, end.1, end.0);
        } else {
            let mut at = start;
            for (x, y) in line.bends.iter().map(|(x, y)| (x + self.shift.0, y + self.shift.1)) {
                path += &curve(at, (x, y));
                path += &format!("H{}", x + BOX.0);
                at = (x + BOX.0, y);
            }
            path += &curve(at, end);
        }
        let tip = tip(to.0, end.1, if in_cycle { " cycle" } else { "" });
        self.put(&format!("<path class=\"line{class}\" d=\"{path}\"/>{tip}"));
    }

    /// The box of a step, and where it is told the word for when it starts.
    fn step(&mut self, step: &UnitView, (x, y): (i64, i64), tells_when: bool, class: &str) {
        let detail = step.detail();
        let told = if detail.is_empty() { step.name.clone() } else { format!("{}: {detail}", step.name) };
        let account = cut_end(&account(step, self.now).join(" · "), ACCOUNT).into_owned();
        let (state, symbol, told) = (step.state.word(), step.state.symbol(), markup(&told));
        let (name, account) = (markup(&cut_middle(&escaped(&step.name), NAME)), markup(&account));
        let (left, first, second, (width, height)) = (x + 12, y + 19, y + 36, BOX);
        self.put(&format!("<g class=\"{state}{class}\"><title>{told}</title>"));
        self.put(&format!("<rect class=\"box\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"7\"/>"));
        self.put(&format!("<text class=\"name\" x=\"{left}\" y=\"{first}\">{name}</text>"));
        self.put(&format!("<text class=\"account\" x=\"{left}\" y=\"{second}\">{symbol} {account}</text></g>"));
        if tells_when {
            let words = step.condition();
            self.put(&format!("<text class=\"when\" x=\"{}\" y=\"{}\">when: {words}</text>", x + 2, y - 5));
        }
    }

    /// A bar behind all steps of `height` pixels below `top`, with an arrow to `end`.
    fn barrier(&mut self, x: i64, (top, height): (i64, i64), end: i64) {
        let (bottom, middle) = (top + height, top + height / 2);
        let tip = tip(end, middle, "");
        self.put(&format!("<path class=\"line\" d=\"M{x} {top}V{bottom}M{x} {middle}H{}\"/>{tip}", end - 8));
    }

    fn finally(&mut self, (x, y): (i64, i64), (width, height): (i64, i64)) {
        self.put(&format!(
            "<rect class=\"finally\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>"
        ));
        self.put(&format!("<text class=\"about\" x=\"{}\" y=\"{}\">finally</text>", x + INNER, y + 22));
        let graph = self.graph;
        for (row, step) in (0_i64..).zip(&graph.finally) {
            let corner = (x + INNER, y + FINALLY_HEAD + row * ROW);
            self.step(step, corner, step.when != StepWhen::Finished, "");
        }
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A curve that leaves and arrives level.
fn curve(from: (i64, i64), to: (i64, i64)) -> String {
    let middle = (from.0 + to.0) / 2;
    format!("C{middle} {} {middle} {} {} {}", from.1, to.1, to.0, to.1)
}

/// The tip of an arrow to this point, from the left.
fn tip(x: i64, y: i64, class: &str) -> String {
    format!("<path class=\"tip{class}\" d=\"M{x} {y}l-10 -5v10z\"/>", x = x - 1)
}

/// Text as XML takes it.
fn markup(text: &str) -> String {
    let escaped = escaped(text);
    escaped.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
