//! `oarlock graph`: draws the steps of a JobFlow from a cluster or a file.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use oarlock_view::{FlowGraph, FlowKind, FlowView, graph_mermaid, graph_text};
use serde_json::Value;

use super::jobs::flows::{FLOW_GROUP, FlowClient};
use super::jobs::names::{FlowName, flow_name};
use super::jobs::{NamespaceArgs, now};
use super::output::print;
use super::text_file;

/// The width of a drawing, in columns, if the output is no terminal.
const WIDTH: u16 = 100;

const EXAMPLES: &str = "\
Examples:
  oarlock graph nightly                            the steps with their phases, in order of dependencies
  oarlock graph -f flow.yaml                       the steps of a file; exit code 1 if the graph has a cycle
  oarlock graph nightly -o mermaid                 a Mermaid flowchart, for example for a pull request";

/// Arguments of `oarlock graph`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GraphArgs {
    /// The JobFlow, as NAME or jf/NAME
    #[arg(value_name = "NAME", value_parser = jobflow_name, required_unless_present = "file", conflicts_with = "file")]
    name: Option<String>,
    /// A file with one JobFlow, as YAML or JSON; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: GraphOutput,
    #[command(flatten)]
    place: NamespaceArgs,
}

/// The format of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphOutput {
    /// A drawing for a terminal.
    Text,
    /// A Mermaid flowchart.
    Mermaid,
}

/// Parses the name of a JobFlow: `NAME`, or `jf/NAME`.
fn jobflow_name(text: &str) -> Result<String, String> {
    if !text.contains('/') {
        return flow_name(&format!("jf/{text}")).map(|FlowName { name, .. }| name);
    }
    let FlowName { kind, name } = flow_name(text)?;
    match kind {
        FlowKind::JobFlow => Ok(name),
        FlowKind::DaemonJob => {
            Err(format!("the nodes of a DaemonJob have no order: `oarlock watch dj/{name}` shows them"))
        }
    }
}

/// Draws the graph. Draws a graph with a cycle too, and then returns the exit code 1.
pub(crate) async fn run(args: GraphArgs) -> anyhow::Result<ExitCode> {
    let GraphArgs { name, file, output, place } = args;
    let view = match (file, name) {
        (Some(path), _) => from_file(&path)?,
        (None, Some(name)) => FlowClient::new(place, FlowKind::JobFlow).await?.view(&name).await?,
        (None, None) => bail!("name a JobFlow, or give -f FILE"),
    };
    let graph = FlowGraph::new(&view);
    let drawn = match output {
        GraphOutput::Text => graph_text(&graph, usize::from(width()), now()),
        GraphOutput::Mermaid => graph_mermaid(&graph, now()),
    };
    let printed = print(&drawn)?;
    Ok(if graph.has_cycle() { ExitCode::FAILURE } else { printed })
}

fn width() -> u16 {
    let of_terminal = || crossterm::terminal::size().ok().map(|(columns, _)| columns);
    std::io::stdout().is_terminal().then(of_terminal).flatten().filter(|columns| *columns > 0).unwrap_or(WIDTH)
}

/// Reads the one JobFlow of a file. The file may also hold JobTemplates.
fn from_file(path: &Path) -> anyhow::Result<FlowView> {
    let shown = text_file::shown(path);
    let text = text_file::text_of(path).with_context(|| format!("cannot read {shown}"))?;
    let flow = jobflow(&text).with_context(|| format!("cannot draw {shown}"))?;
    Ok(FlowView::new(&flow, []))
}

fn jobflow(text: &str) -> anyhow::Result<Value> {
    let word = |document: &Value, field: &str| document.get(field).and_then(Value::as_str).unwrap_or("none").to_owned();
    let is_flow = |document: &Value| {
        word(document, "kind") == "JobFlow" && word(document, "apiVersion").split('/').next() == Some(FLOW_GROUP)
    };
    let documents = text_file::documents(text)?;
    let kinds: Vec<String> = documents.iter().map(|document| word(document, "kind")).collect();
    let mut flows: Vec<Value> = documents.into_iter().filter(is_flow).collect();
    let count = flows.len();
    match flows.pop() {
        Some(flow) if count == 1 => Ok(flow),
        Some(_) => bail!("it holds {count} JobFlows, and a drawing shows one: put each JobFlow into its own file"),
        None if kinds.is_empty() => bail!("it is empty: write one JobFlow of {FLOW_GROUP}"),
        None => bail!("it holds no JobFlow of {FLOW_GROUP}: its kinds are {}", kinds.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: &str =
        "apiVersion: api.practice.com/v1alpha1\nkind: JobFlow\nmetadata: {name: x}\nspec:\n  flows:\n  - name: a\n";

    #[test]
    fn a_file_is_drawn_if_it_holds_one_jobflow_whatever_stands_beside_it() {
        let template = "apiVersion: api.practice.com/v1alpha1\nkind: JobTemplate\nmetadata: {name: t}\n";
        assert_eq!(jobflow(&format!("{template}---\n{FLOW}")).unwrap()["metadata"]["name"], "x");
        for (text, why) in [
            (template.to_owned(), "its kinds are JobTemplate"),
            (format!("{FLOW}---\n{FLOW}"), "2 JobFlows"),
            (String::new(), "it is empty"),
        ] {
            let said = jobflow(&text).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_graph_is_asked_for_by_the_name_of_a_jobflow() {
        assert_eq!(jobflow_name("web").as_deref(), Ok("web"));
        assert_eq!(jobflow_name("jf/web").as_deref(), Ok("web"));
        assert!(jobflow_name("dj/web").unwrap_err().contains("oarlock watch dj/web"));
        assert!(jobflow_name("").is_err());
    }
}
