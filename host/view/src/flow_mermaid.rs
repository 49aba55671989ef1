//! A graph of steps as a Mermaid flowchart, for documents and for web pages that draw it.

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;

use crate::flow_graph::{FlowGraph, account};
use crate::unit_state::ShownState;
use crate::unit_view::{StepWhen, UnitView};

/// Returns the flowchart. It has a subgraph for `finally`, a class for each state, and the dependencies of a cycle in red.
pub fn graph_mermaid(graph: &FlowGraph<'_>, now: Timestamp) -> String {
    let mut out = format!("%% {}\n", quoted(&graph.heading(now).join(", ")));
    for fault in &graph.faults {
        out += &format!("%% {}\n", quoted(fault));
    }
    out += "flowchart LR\n";
    let has_finally = !graph.finally.is_empty();
    let indent = if has_finally { "    " } else { "  " };
    if has_finally {
        out += "  subgraph flows [\" \"]\n    direction LR\n";
    }
    for (at, step) in graph.steps.iter().enumerate() {
        let _always = writeln!(out, "{indent}{}", node('s', at, step, now));
    }
    let mut number = 0_usize;
    let mut red: Vec<String> = Vec::new();
    for (at, on) in graph.dependencies.iter().enumerate() {
        let condition = graph.steps.get(at).map(|step| step.condition()).unwrap_or_default();
        for dependency in on {
            let is_plain = condition == StepWhen::Success.word();
            let arrow = if is_plain { "-->".to_owned() } else { format!("-->|{condition}|") };
            let _always = writeln!(out, "{indent}s{dependency} {arrow} s{at}");
            red.extend(graph.is_in_cycle(at, *dependency).then(|| number.to_string()));
            number += 1;
        }
    }
    if has_finally {
        out += "  end\n  subgraph last [\"finally\"]\n    direction LR\n";
        for (at, step) in graph.finally.iter().enumerate() {
            let _always = writeln!(out, "    {}", node('f', at, step, now));
        }
        out += "  end\n";
        out += if graph.steps.is_empty() { "" } else { "  flows --> last\n" };
    }
    if !red.is_empty() {
        let _always = writeln!(out, "  linkStyle {} stroke:#d1242f,stroke-width:3px", red.join(","));
    }
    for state in ShownState::ALL {
        if graph.view.units().iter().any(|unit| unit.state == state) {
            let _always = writeln!(out, "  classDef {} {}", state.word().to_lowercase(), style(state));
        }
    }
    out
}

/// Returns the line of a node, such as `s3["build<br/>Running, 12s"]:::running`.
fn node(letter: char, at: usize, step: &UnitView, now: Timestamp) -> String {
    let mut account = account(step, now);
    if letter == 'f' && step.when != StepWhen::Finished {
        account.push(format!("when: {}", step.when.word()));
    }
    let class = step.state.word().to_lowercase();
    format!("{letter}{at}[\"{}<br/>{}\"]:::{class}", quoted(&step.name), quoted(&account.join(", ")))
}

/// Returns a text for use within the quotes of a label. Each character with a meaning in Mermaid or HTML becomes a character reference.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || " .,:/-_>()".contains(c);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_plain(c) && c != '>' { out.push(c) } else { out += &format!("#{};", u32::from(c)) }
    }
    out
}

/// Returns the fill, line and text colours of a state, which are readable on a light page and on a dark page.
fn style(state: ShownState) -> &'static str {
    match state {
        ShownState::Succeed => "fill:#dafbe1,stroke:#1a7f37,color:#0f3d1c",
        ShownState::Failed => "fill:#ffebe9,stroke:#d1242f,color:#5c0f14,stroke-width:2px",
        ShownState::Running => "fill:#ddf4ff,stroke:#0969da,color:#0a3069,stroke-width:2px",
        ShownState::Pending => "fill:#ddf4ff,stroke:#0969da,color:#0a3069,stroke-dasharray:4 3",
        ShownState::Retrying | ShownState::Blocked => "fill:#fff8c5,stroke:#9a6700,color:#4d3300,stroke-width:2px",
        ShownState::Omitted => "fill:#f6f8fa,stroke:#8c959f,color:#59636e,stroke-dasharray:4 3",
        ShownState::Waiting | ShownState::Unknown => "fill:#f6f8fa,stroke:#8c959f,color:#1f2328",
    }
}
