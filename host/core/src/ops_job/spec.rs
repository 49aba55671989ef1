//! What an OpsJob asks for, as its spec says it: the same rules for REST and kubectl. Source: docs/opsjob.md 2.
//!
//! Takes the raw spec; yields it with types, or the first field that breaks a rule. Only what the spec alone decides is checked here:
//! whether a node or workload is there is asked in `targets`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::child::fields::{flag, list, object, text};
use crate::cluster::scripts::sha256;
use crate::job::bound::shown;
use crate::job::spec::PARAMETERS_BYTES;
use crate::ops_job::ratio::Ratio;
use crate::ops_job::targets::{Extent, Filters};

/// Most inputs of a job, and most bytes of the value of one.
const INPUTS: usize = 5_000;
const VALUE: usize = 64 * 1024;
/// Most workloads: the policy asks for the right to read each.
const WORKLOADS: usize = 4;
/// Most bytes of a script.
const SCRIPT: usize = 96 * 1024;
/// Most variables, and most directories of nodes.
const VARIABLES: usize = 64;
const HOST_PATHS: usize = 16;
/// The fields that only a check has.
const CHECK_FIELDS: [&str; 7] = ["image", "entryPoint", "env", "hostpath", "resource", "replica", "securityUpgrade"];
/// The field of the time to live.
const TTL: &str = "ttlSecondsAfterFinished";
/// Nobody else may set variables that begin so.
const OWN_VARIABLES: &str = "OARLOCK_";

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpsType {
    /// Runs scripts on nodes.
    Addon,
    /// Checks nodes.
    Preflight,
    /// Collects the logs of a workload.
    Dumplog,
    /// Reboots nodes.
    Reboot,
    /// Copies the image of a workload.
    Exportimage,
}

impl OpsType {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Addon, Self::Preflight, Self::Dumplog, Self::Reboot, Self::Exportimage];

    /// The word of `spec.type`, which is the action of the child too.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Addon => "addon",
            Self::Preflight => "preflight",
            Self::Dumplog => "dumplog",
            Self::Reboot => "reboot",
            Self::Exportimage => "exportimage",
        }
    }

    fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.word() == word)
    }

    /// Seconds that each target has.
    pub const fn deadline(self) -> i64 {
        match self {
            Self::Reboot | Self::Dumplog => 3_600,
            Self::Preflight | Self::Exportimage => 7_200,
            Self::Addon => 86_400,
        }
    }

    /// True where it works on nodes, and has them for itself.
    pub const fn is_for_nodes(self) -> bool {
        matches!(self, Self::Addon | Self::Preflight | Self::Reboot)
    }
}

/// A field that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleBroken {
    /// The field, and the rule in words.
    pub message: String,
}

fn refuse<T>(field: &str, rule: impl std::fmt::Display) -> Result<T, RuleBroken> {
    Err(RuleBroken { message: format!("spec.{field}: {rule}") })
}

/// Which nodes or workload a job is for, as it says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Names of nodes.
    pub nodes: Vec<String>,
    /// Hosts.
    pub hosts: Vec<String>,
    /// Workloads, in the form `namespace/kind/name`, `namespace/name` or `name`.
    pub workloads: Vec<String>,
    /// A workspace.
    pub workspace: Option<String>,
    /// A cluster.
    pub cluster: Option<String>,
}

/// A spec with types.
#[derive(Clone, Debug, PartialEq)]
pub struct OpsSpec {
    /// What it does.
    pub kind: OpsType,
    /// On what.
    pub scope: Scope,
    /// On what not.
    pub filters: Filters,
    /// Most targets at once; `None` for all.
    pub batch: Option<usize>,
    /// The share that has to succeed.
    pub ratio: Ratio,
    /// Seconds from its creation to its end by force.
    pub timeout: Option<i64>,
    /// The parameters of its child.
    pub parameters: Map<String, Value>,
    /// The script that these name by its digest.
    pub script: Option<String>,
}

/// Most names of nodes that are asked for one by one.
const FEW: usize = 16;

impl OpsSpec {
    /// The names of the nodes that decide, where these are few; empty where all nodes may.
    pub fn nodes_that_decide(&self) -> &[String] {
        let Scope { nodes, hosts, .. } = &self.scope;
        let alone = nodes.len() <= FEW
            && hosts.is_empty()
            && self.scope.workspace.is_none()
            && self.filters.excluded.is_empty();
        if alone { nodes } else { &[] }
    }
}

/// What a host has for jobs that do not say it.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Seconds from creation to end; none at most 0.
    pub timeout: i64,
    /// Seconds after the end; for ever below 0.
    pub ttl: i64,
}

impl Default for Defaults {
    fn default() -> Self {
        Self { timeout: 0, ttl: 3_600 }
    }
}

impl OpsSpec {
    /// Reads a stored spec.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn read(spec: &Value, defaults: Defaults) -> Result<Self, RuleBroken> {
        let words = OpsType::ALL.map(OpsType::word).join(", ");
        let Some(kind) = text(spec, "/type").and_then(OpsType::read) else {
            return refuse("type", format_args!("one of {words}"));
        };
        if !matches!(kind, OpsType::Reboot | OpsType::Preflight) {
            return refuse("type", format_args!("{} is not served by this version", kind.word()));
        }
        let misplaced = CHECK_FIELDS.iter().find(|field| kind != OpsType::Preflight && is_given(spec, field));
        if let Some(field) = misplaced {
            return refuse(field, format_args!("only of a preflight, and this is a {}", kind.word()));
        }
        let inputs = Inputs::read(spec, kind)?;
        let seconds = |field: &str, default: i64| whole(spec, field).map(|seconds| seconds.unwrap_or(default));
        let count = |field: &str| match whole(spec, field)? {
            Some(count) if count < 0 => refuse(field, "0 or more"),
            count => Ok(count.and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0)),
        };
        let batch = count("batchCount")?.or((kind != OpsType::Preflight).then_some(1));
        let ratio = match spec.get("availableRatio").filter(|ratio| !ratio.is_null()) {
            None => Ratio::default(),
            Some(ratio) => {
                let Some(ratio) = ratio.as_str() else {
                    return refuse("availableRatio", "a decimal number as text, such as \"0.9\"");
                };
                Ratio::read(ratio).map_err(|message| RuleBroken { message: format!("spec.{message}") })?
            }
        };
        let filters = filters(spec, kind, count("replica")?.unwrap_or(0));
        let (parameters, script) = match kind {
            OpsType::Preflight => check_parameters(spec).map(|(parameters, script)| (parameters, Some(script)))?,
            _ => (Map::from_iter(inputs.drain.map(|drain| ("drain".to_owned(), Value::Bool(drain)))), None),
        };
        whole(spec, TTL)?;
        let bytes = Value::Object(parameters.clone()).to_string().len();
        if bytes > PARAMETERS_BYTES {
            let rule = format!(
                "with image, hostpath and resource it takes {bytes} bytes, and an OperationJob has {PARAMETERS_BYTES}"
            );
            return refuse("env", rule);
        }
        Ok(Self {
            kind,
            scope: inputs.scope,
            filters,
            batch,
            ratio,
            timeout: Some(seconds("timeoutSecond", defaults.timeout)?).filter(|seconds| *seconds > 0),
            parameters,
            script,
        })
    }
}

/// Seconds that a job stays after its end, whatever else its spec says; `None` for ever.
pub(super) fn time_to_live(spec: &Value, defaults: Defaults) -> Option<i64> {
    let given = whole(spec, TTL).ok().flatten();
    Some(given.unwrap_or(defaults.ttl)).filter(|seconds| *seconds >= 0)
}

/// What of a spec decides beside the selectors.
fn filters(spec: &Value, kind: OpsType, replica: usize) -> Filters {
    let is_check = kind == OpsType::Preflight;
    let keeps_off = match (is_check, flag(spec, "/isTolerateAll")) {
        (_, true) => Extent::Never,
        (true, false) => Extent::Always,
        (false, false) => Extent::Wide,
    };
    let excluded: BTreeSet<String> =
        list(spec, "/excludedNodes").iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    Filters {
        excluded,
        may_exclude_nobody: false,
        control_plane: if is_check { Extent::Never } else { Extent::Wide },
        not_ready: if is_check { Extent::Always } else { Extent::Unnamed },
        unschedulable: keeps_off,
        spares_busy: is_check && flag(spec, "/securityUpgrade"),
        replica,
    }
}

/// What the inputs of a job say.
#[derive(Debug, Default)]
struct Inputs {
    scope: Scope,
    drain: Option<bool>,
}

impl Inputs {
    fn read(spec: &Value, kind: OpsType) -> Result<Self, RuleBroken> {
        let all = list(spec, "/inputs");
        if all.is_empty() || all.len() > INPUTS {
            return refuse("inputs", format_args!("1 to {INPUTS} of them"));
        }
        let mut inputs = Self::default();
        for (index, input) in all.iter().enumerate() {
            let field = format!("inputs[{index}]");
            let name = text(input, "/name").unwrap_or_default().trim().to_ascii_lowercase();
            let value = text(input, "/value").unwrap_or_default();
            if value.is_empty() || value.len() > VALUE || value.contains('\0') {
                return refuse(&format!("{field}.value"), format_args!("1 to {VALUE} bytes, none of them 0"));
            }
            inputs.take(&field, (&name, value), kind)?;
        }
        let Scope { nodes, hosts, workloads, workspace, cluster } = &inputs.scope;
        if workloads.len() > WORKLOADS {
            return refuse("inputs", format_args!("at most {WORKLOADS} workloads"));
        }
        if nodes.is_empty() && hosts.is_empty() && workloads.is_empty() && workspace.is_none() && cluster.is_none() {
            return refuse("inputs", "one of node, node.host, workload, workspace and cluster at least");
        }
        Ok(inputs)
    }

    fn take(&mut self, field: &str, (name, value): (&str, &str), kind: OpsType) -> Result<(), RuleBroken> {
        let value = value.to_owned();
        let single = |place: &mut Option<String>| match place.replace(value.clone()) {
            None => Ok(()),
            Some(_) => refuse(field, format_args!("one {name} at most")),
        };
        match name {
            "node" => self.scope.nodes.push(value),
            "node.host" => self.scope.hosts.push(value),
            "workload" => self.scope.workloads.push(value),
            "workspace" => single(&mut self.scope.workspace)?,
            "cluster" => single(&mut self.scope.cluster)?,
            "label" => {}
            "drain" if kind == OpsType::Reboot => match value.as_str() {
                "true" | "false" => self.drain = Some(value == "true"),
                _ => return refuse(field, "drain is true or false"),
            },
            _ => {
                let known = "node, node.host, workload, workspace, cluster, label, and drain of a reboot";
                return refuse(&format!("{field}.name"), format_args!("{} is none of {known}", shown(name, 64)));
            }
        }
        Ok(())
    }
}

/// True of a field that says something.
fn is_given(spec: &Value, field: &str) -> bool {
    match spec.get(field) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() != Some(0),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(Value::Bool(true)) => true,
    }
}

/// A whole number of 32 bits.
fn whole(spec: &Value, field: &str) -> Result<Option<i64>, RuleBroken> {
    let Some(value) = spec.get(field).filter(|value| !value.is_null()) else { return Ok(None) };
    match value.as_i64().filter(|number| i32::try_from(*number).is_ok()) {
        Some(number) => Ok(Some(number)),
        None => refuse(field, "a whole number of 32 bits"),
    }
}

/// The parameters of a check, and its script.
fn check_parameters(spec: &Value) -> Result<(Map<String, Value>, String), RuleBroken> {
    let Some(image) = text(spec, "/image").filter(|image| !image.is_empty()) else {
        return refuse("image", "the image of the check, which a preflight needs");
    };
    let Some(script) = text(spec, "/entryPoint").and_then(decoded) else {
        return refuse("entryPoint", "a script of 1 byte to 96 KiB in Base64, none of them 0, which a preflight needs");
    };
    let named = json!({"sha256": sha256(&script)});
    let mut parameters = Map::from_iter([("image".to_owned(), json!(image)), ("script".to_owned(), named)]);
    let env = object(spec, "/env").cloned().unwrap_or_default();
    if env.len() > VARIABLES {
        return refuse("env", format_args!("at most {VARIABLES} variables"));
    }
    if let Some((name, _)) = env.iter().find(|(name, value)| !is_variable(name) || !value.is_string()) {
        let rule = format!("text by name, of letters, digits and _, and none that begins with {OWN_VARIABLES}");
        return refuse(&format!("env.{}", shown(name, 64)), rule);
    }
    let paths: Vec<&str> = list(spec, "/hostpath").iter().filter_map(Value::as_str).collect();
    if paths.len() > HOST_PATHS {
        return refuse("hostpath", format_args!("at most {HOST_PATHS} directories"));
    }
    let paths: BTreeSet<&str> = paths.into_iter().map(|path| path.strip_suffix('/').unwrap_or(path)).collect();
    if let Some(path) = paths.iter().find(|path| !is_path(path)) {
        return refuse(
            "hostpath",
            format_args!("absolute paths without `..` and `//`, and one is {}", shown(path, 64)),
        );
    }
    if !env.is_empty() {
        parameters.insert("env".to_owned(), Value::Object(env));
    }
    if !paths.is_empty() {
        parameters.insert("hostPaths".to_owned(), json!(paths));
    }
    if flag(spec, "/isTolerateAll") {
        parameters.insert("tolerateAll".to_owned(), Value::Bool(true));
    }
    parameters.extend(resources(spec)?);
    Ok((parameters, script))
}

/// The parameters that `spec.resource` becomes.
fn resources(spec: &Value) -> Result<Vec<(String, Value)>, RuleBroken> {
    let Some(resource) = object(spec, "/resource") else { return Ok(Vec::new()) };
    let (mut parameters, mut amounts) = (Vec::new(), BTreeMap::new());
    for (field, value) in resource {
        let path = format!("resource.{}", shown(field, 64));
        let Some(amount) = value.as_str().filter(|amount| !amount.is_empty()) else {
            match value {
                Value::String(_) | Value::Null => continue,
                _ => return refuse(&path, "text, such as \"500m\""),
            }
        };
        match field.as_str() {
            "cpu" | "memory" => drop(amounts.insert(field.as_str(), amount)),
            "ephemeralStorage" => drop(amounts.insert("ephemeral-storage", amount)),
            "sharedMemory" | "gpuName" => parameters.push((field.clone(), json!(amount))),
            "gpu" => match amount.parse::<u32>() {
                Ok(gpus) => parameters.push(("gpus".to_owned(), json!(gpus))),
                Err(_) => return refuse(&path, "a number of GPUs as text, such as \"8\""),
            },
            _ => return refuse(&path, "none of cpu, gpu, gpuName, memory, sharedMemory and ephemeralStorage"),
        }
    }
    if !amounts.is_empty() {
        parameters.push(("resources".to_owned(), json!(amounts)));
    }
    Ok(parameters)
}

/// The text of Base64, with or without padding.
fn decoded(text: &str) -> Option<String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD_NO_PAD;
    let bytes = STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
    let is_script = |script: &String| (1..=SCRIPT).contains(&script.len()) && !script.contains('\0');
    String::from_utf8(bytes).ok().filter(is_script)
}

fn is_variable(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(is_first)
        && name.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit())
        && !name.starts_with(OWN_VARIABLES)
}

fn is_path(path: &str) -> bool {
    path.len() > 1 && path.starts_with('/') && path.split('/').skip(1).all(|part| !part.is_empty() && part != "..")
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
