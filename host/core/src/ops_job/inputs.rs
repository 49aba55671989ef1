//! The inputs of an OpsJob: the scope of its work, and the settings of its type. Source: docs/opsjob.md 2.
//!
//! Takes the list as written; yields the parsed inputs, or the first input that breaks a rule. May not read anything else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::object::bound::shown;
use crate::object::fields::{list, text};
use crate::object::key::is_object_name;
use crate::ops_job::addon::{SCRIPT, STEPS, StepSource, TemplateKind, is_script};
use crate::ops_job::nearest::nearest;
use crate::ops_job::spec::{OpsType, RuleBroken, refuse};
use crate::plugin::names::is_dns_label;

/// The most inputs of a job, and the most bytes of the value of an input.
const INPUTS: usize = 5_000;
const VALUE: usize = 64 * 1024;
/// The most bytes of the job's own script in Base64.
const SCRIPT_VALUE: usize = 512 * 1024;
/// The most workloads. The policy checks the permission to read each of them.
const WORKLOADS: usize = 4;

/// The mode that leaves out platforms of an image that do not exist.
const AVAILABLE: &str = "copy-available";

/// All inputs, each with the types of jobs that take it.
const KNOWN: [(&str, &[OpsType]); 12] = [
    ("node", &OpsType::ALL),
    ("node.host", &OpsType::ALL),
    ("workload", &OpsType::ALL),
    ("workspace", &OpsType::ALL),
    ("cluster", &OpsType::ALL),
    ("label", &OpsType::ALL),
    ("drain", &[OpsType::Reboot]),
    ("addon.template", &[OpsType::Addon]),
    ("node.template", &[OpsType::Addon]),
    ("script", &[OpsType::Addon]),
    ("mode", &[OpsType::Exportimage]),
    ("container", &[OpsType::Exportimage]),
];

/// The nodes or workloads that a job selects, as its inputs name them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Names of nodes.
    pub nodes: Vec<String>,
    /// Hosts of nodes.
    pub hosts: Vec<String>,
    /// Workloads, in the form `namespace/kind/name`, `namespace/name` or `name`.
    pub workloads: Vec<String>,
    /// The workspace of the nodes.
    pub workspace: Option<String>,
    /// The id of the cluster.
    pub cluster: Option<String>,
}

impl Scope {
    const fn is_empty(&self) -> bool {
        let Self { nodes, hosts, workloads, workspace, cluster } = self;
        nodes.is_empty() && hosts.is_empty() && workloads.is_empty() && workspace.is_none() && cluster.is_none()
    }
}

/// The parsed inputs of a job.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    pub(super) scope: Scope,
    /// True if a reboot drains its nodes.
    pub(super) drain: Option<bool>,
    /// The templates that an addon runs, and its own scripts.
    templates: Vec<StepSource>,
    scripts: Vec<StepSource>,
    mode: Option<String>,
    /// The container whose image is exported.
    pub(super) container: Option<String>,
    /// Bytes of the longest label.
    pub(super) label: usize,
}

impl Inputs {
    pub(super) fn read(spec: &Value, kind: OpsType) -> Result<Self, RuleBroken> {
        let all = list(spec, "/inputs");
        if all.is_empty() || all.len() > INPUTS {
            return refuse("inputs", format_args!("1 to {INPUTS} of them"));
        }
        let mut inputs = Self::default();
        for (index, input) in all.iter().enumerate() {
            let field = format!("inputs[{index}]");
            let name = text(input, "/name").unwrap_or_default().trim().to_ascii_lowercase();
            let value = text(input, "/value").unwrap_or_default();
            let most = if name == "script" { SCRIPT_VALUE } else { VALUE };
            if value.is_empty() || value.len() > most || value.contains('\0') {
                return refuse(
                    &format!("{field}.value"),
                    format_args!("must have 1 to {most} bytes without NUL bytes"),
                );
            }
            check_name(&field, &name, kind)?;
            inputs.take(&field, &name, value)?;
        }
        inputs.check(kind)?;
        Ok(inputs)
    }

    fn take(&mut self, field: &str, name: &str, value: &str) -> Result<(), RuleBroken> {
        let single = |place: &mut Option<String>| match place.replace(value.to_owned()) {
            None => Ok(()),
            Some(_) => refuse(field, format_args!("one {name} at most")),
        };
        match name {
            "node" => self.scope.nodes.push(value.to_owned()),
            "node.host" => self.scope.hosts.push(value.to_owned()),
            "workload" => self.scope.workloads.push(value.to_owned()),
            "workspace" => single(&mut self.scope.workspace)?,
            "cluster" => single(&mut self.scope.cluster)?,
            "drain" => match value {
                _ if self.drain.is_some() => return refuse(field, "one drain at most"),
                "true" | "false" => self.drain = Some(value == "true"),
                _ => return refuse(field, "drain is true or false"),
            },
            "addon.template" | "node.template" => {
                if !is_object_name(value) {
                    return refuse(field, format_args!("{} is no name of a template", shown(value, 64)));
                }
                let kind = if name == "node.template" { TemplateKind::Node } else { TemplateKind::Addon };
                let source = StepSource::Template(kind, value.to_owned());
                if !self.templates.contains(&source) {
                    self.templates.push(source);
                }
            }
            "script" => {
                let script = STANDARD.decode(value).ok().and_then(|script| String::from_utf8(script).ok());
                let Some(script) = script.filter(|script| is_script(script)) else {
                    let rule = format!(
                        "must be a script in Base64 with padding, of 1 to {SCRIPT} bytes of UTF-8 without NUL bytes"
                    );
                    return refuse(field, rule);
                };
                self.scripts.push(StepSource::Script(script));
            }
            "mode" => match value {
                "copy" | AVAILABLE | "commit" => single(&mut self.mode)?,
                _ => return refuse(field, format_args!("mode is copy, {AVAILABLE} or commit")),
            },
            "container" if is_dns_label(value) => single(&mut self.container)?,
            "container" => {
                return refuse(
                    &format!("{field}.value"),
                    format_args!("{} is no name of a container", shown(value, 64)),
                );
            }
            _ => self.label = self.label.max(value.len()),
        }
        Ok(())
    }

    /// Checks the rules about all inputs together.
    fn check(&self, kind: OpsType) -> Result<(), RuleBroken> {
        let workloads = self.scope.workloads.len();
        if !kind.is_for_nodes() && workloads != 1 {
            return refuse(
                "inputs",
                format_args!("{} needs exactly one workload, and the job has {workloads}", kind.word()),
            );
        }
        if workloads > WORKLOADS {
            return refuse("inputs", format_args!("at most {WORKLOADS} workloads"));
        }
        if self.scope.is_empty() {
            return refuse("inputs", "give at least one of node, node.host, workload, workspace or cluster");
        }
        match (self.templates.len() + self.scripts.len(), kind) {
            (0, OpsType::Addon) => refuse("inputs", "an addon has an addon.template, a node.template or a script"),
            (steps, _) if steps > STEPS => {
                refuse("inputs", format_args!("at most {STEPS} templates and scripts, and the job has {steps}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the job exports the file system of the container instead of its image.
    pub(super) fn commits(&self) -> bool {
        self.mode.as_deref() == Some("commit")
    }

    /// Returns true if the host copies only the platforms that the registry has.
    pub(super) fn copies_what_is_there(&self) -> bool {
        self.mode.as_deref() == Some(AVAILABLE)
    }

    /// Returns the sources of an addon's steps. Its own scripts come last.
    pub(super) fn steps(self) -> Vec<StepSource> {
        self.templates.into_iter().chain(self.scripts).collect()
    }
}

fn check_name(field: &str, name: &str, kind: OpsType) -> Result<(), RuleBroken> {
    let field = format!("{field}.name");
    let of_kind = KNOWN.iter().filter(|(_, kinds)| kinds.contains(&kind)).map(|(name, _)| *name);
    match KNOWN.iter().find(|(known, _)| *known == name) {
        Some((_, kinds)) if kinds.contains(&kind) => Ok(()),
        Some((_, kinds)) => {
            let of = kinds.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ");
            refuse(&field, format_args!("{name} is for {of}, and the type is {}", kind.word()))
        }
        None if name == "image" => refuse(&field, "image is added by the host: leave it out"),
        None => {
            let known: Vec<&str> = of_kind.collect();
            let near = nearest(name, &known).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            refuse(&field, format_args!("{} is none of {}{near}", shown(name, 64), known.join(", ")))
        }
    }
}
