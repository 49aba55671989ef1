//! Builds the body of a request from arguments.

use std::path::PathBuf;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::{Map, Number, Value, json};

use crate::commands::text_file::{shown, text_of};

/// The fields of a new job.
#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// addon, dumplog, exportimage, preflight or reboot
    #[arg(value_name = "TYPE", required_unless_present = "file")]
    kind: Option<String>,
    /// Prefix of the job's id
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    name: Option<String>,
    /// A node by name; can be repeated
    #[arg(long, value_name = "NAME")]
    node: Vec<String>,
    /// A node by its label kubernetes.io/hostname; can be repeated
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// The nodes of a workload: namespace/kind/name; can be repeated. dumplog, exportimage: the workload with the logs
    /// or the image
    #[arg(long, value_name = "WORKLOAD")]
    workload: Vec<String>,
    /// The nodes of a workspace
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// All nodes of the cluster with this id
    #[arg(long, value_name = "ID")]
    cluster: Option<String>,
    /// A node to leave out, by name or host; can be repeated
    #[arg(long, value_name = "NAME")]
    exclude: Vec<String>,
    /// Also take cordoned and tainted nodes
    #[arg(long)]
    tolerate_all: bool,
    /// Most nodes at once [default: 1; all for a preflight]
    #[arg(long, value_name = "N")]
    batch: Option<i32>,
    /// The share of nodes that must succeed, such as 0.9 [default: 1]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    ratio: Option<Number>,
    /// Seconds after its creation at which the job is stopped [default: none]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    timeout: Option<i32>,
    /// Seconds to keep the job after its end; a negative number keeps it forever [default: 3600]
    ///
    /// Argo CD and Flux apply an OpsJob in Git again after its deletion, and its nodes reboot again. Keep such an
    /// object with -1. Only callers with rights in the whole cluster may send -1.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    ttl: Option<i32>,
    /// reboot: evict the pods of a node first
    #[arg(long)]
    drain: bool,
    /// exportimage: the container whose image is exported [default: the first]
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// exportimage: copy the image that the container runs (copy), only its available platforms (copy-available), or
    /// the container as it is now (commit) [default: copy]
    #[arg(long, value_name = "MODE", value_parser = ["copy", "copy-available", "commit"])]
    mode: Option<String>,
    /// addon: an AddonTemplate to run; can be repeated
    #[arg(long, value_name = "NAME")]
    template: Vec<String>,
    /// addon: a NodeTemplate, whose steps run before every --template; can be repeated
    #[arg(long, value_name = "NAME")]
    node_template: Vec<String>,
    /// preflight: the image of the check
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// preflight, addon: the file of a script; `-` is standard input. An addon runs it last, as root, and needs the
    /// right to create opsjobs/script
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// preflight: a variable of the check, which must be no secret; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// preflight: a directory of the node that the check can read; can be repeated
    #[arg(long, value_name = "PATH")]
    host_path: Vec<String>,
    /// preflight: a resource request of the check, such as cpu=500m, memory=1Gi or gpu=8; can be repeated
    #[arg(long, value_name = "NAME=AMOUNT", value_parser = variable)]
    resource: Vec<(String, String)>,
    /// preflight: the number of nodes of the workspace or cluster [default: all]
    #[arg(long, value_name = "N")]
    replica: Option<i32>,
    /// preflight: leave out nodes with pods of workloads. addon: wait until a node has no such pods
    #[arg(long)]
    idle_only: bool,
}

impl CreateArgs {
    /// Returns the body.
    pub(super) fn body(self) -> anyhow::Result<Value> {
        let named = |name: &'static str, values: Vec<String>| {
            values.into_iter().map(move |value| json!({"name": name, "value": value}))
        };
        let mut inputs: Vec<Value> = named("node", self.node)
            .chain(named("node.host", self.host))
            .chain(named("workload", self.workload))
            .chain(named("workspace", self.workspace.into_iter().collect()))
            .chain(named("cluster", self.cluster.into_iter().collect()))
            .collect();
        if inputs.is_empty() {
            anyhow::bail!("name what it works on: --node, --host, --workload, --workspace or --cluster");
        }
        inputs.extend(named("node.template", self.node_template));
        inputs.extend(named("addon.template", self.template));
        inputs.extend(named("container", self.container.into_iter().collect()));
        inputs.extend(named("mode", self.mode.into_iter().collect()));
        inputs.extend(self.drain.then(|| json!({"name": "drain", "value": "true"})));
        let script = self.script.map(|file| {
            let text = text_of(&file).with_context(|| format!("cannot read the script {}", shown(&file)))?;
            anyhow::Ok(STANDARD.encode(text))
        });
        let (own, entry_point) = match script.transpose()? {
            Some(script) if self.kind.as_deref() == Some("addon") => (Some(script), None),
            script => (None, script),
        };
        inputs.extend(named("script", own.into_iter().collect()));
        let texts = |pairs: Vec<(String, String)>| {
            Some(pairs.into_iter().map(|(name, value)| (name, json!(value))).collect::<Map<_, _>>())
                .filter(|map| !map.is_empty())
        };
        let list = |values: Vec<String>| Some(values).filter(|values| !values.is_empty());
        let given = [
            ("name", self.name.map(Value::from)),
            ("type", self.kind.map(Value::from)),
            ("inputs", Some(json!(inputs))),
            ("excludedNodes", list(self.exclude).map(Value::from)),
            ("isTolerateAll", self.tolerate_all.then(|| json!(true))),
            ("batchCount", self.batch.map(Value::from)),
            ("availableRatio", self.ratio.map(Value::Number)),
            ("timeoutSecond", self.timeout.map(Value::from)),
            ("ttlSecondsAfterFinished", self.ttl.map(Value::from)),
            ("image", self.image.map(Value::from)),
            ("entryPoint", entry_point.map(Value::from)),
            ("env", texts(self.env).map(Value::from)),
            ("hostpath", list(self.host_path).map(Value::from)),
            ("resource", texts(self.resource).map(Value::from)),
            ("replica", self.replica.map(Value::from)),
            ("securityUpgrade", self.idle_only.then(|| json!(true))),
        ];
        Ok(Value::Object(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()))
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| "write NAME=VALUE".to_owned())?;
    Ok((name.to_owned(), value.to_owned()))
}

fn ratio(text: &str) -> Result<Number, String> {
    text.parse().map_err(|_| "a number above 0 and up to 1, such as 0.9".to_owned())
}
