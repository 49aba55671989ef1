//! `oarlock retry`: asks the host to run the failed and omitted parts of a JobFlow or a DaemonJob again.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use oarlock_view::{FlowKind, retry_value};

use super::jobs::flows::FlowClient;
use super::jobs::names::{FlowName, flow_name};
use super::jobs::{NamespaceArgs, now};
use super::output::print;

const EXAMPLES: &str = "\
Examples:
  oarlock retry jf/nightly                         run all failed and omitted steps again
  oarlock retry jf/nightly --step load --step mail  run only these two steps again
  oarlock retry dj/patch-kernel --node worker-7    run one node of a DaemonJob again
  oarlock retry jf/nightly && oarlock watch jf/nightly

A succeeded step or node never runs again. If the failure policy has paused the object, the object goes on.";

/// Arguments of `oarlock retry`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RetryArgs {
    /// The object, as jf/NAME or dj/NAME
    #[arg(value_name = "KIND/NAME", value_parser = flow_name)]
    object: FlowName,
    /// A step, or a node of a DaemonJob; can be repeated [default: all failed and omitted ones]
    #[arg(long = "step", visible_alias = "node", value_name = "NAME")]
    steps: Vec<String>,
    #[command(flatten)]
    place: NamespaceArgs,
}

/// Writes the annotation that requests the retry.
pub(crate) async fn run(args: RetryArgs) -> anyhow::Result<ExitCode> {
    let RetryArgs { object: FlowName { kind, name }, steps, place } = args;
    let client = FlowClient::new(place, kind).await?;
    let view = client.view(&name).await?;
    let value = retry_value(&view, &steps, now()).map_err(|refusal| anyhow!(refusal))?;
    client.annotate(&name, oarlock_view::RETRY_ANNOTATION, &value).await?;
    let whose = match (steps.is_empty(), kind) {
        (false, _) => steps.join(", "),
        (true, FlowKind::JobFlow) => "what failed or was omitted".to_owned(),
        (true, FlowKind::DaemonJob) => "the nodes that failed or were omitted".to_owned(),
    };
    let (handle, namespace) = (view.handle(), client.namespace());
    print(&format!("{handle}: {whose} will run again; `oarlock watch {handle} -n {namespace}` follows it\n"))
}
