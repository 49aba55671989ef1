//! Reads and checks the spec of an OpsJob, by the same rules for REST and kubectl. Source: docs/opsjob.md 2.
//!
//! Takes the raw spec; yields the typed spec, or the first field that breaks a rule. It checks only rules about the spec itself. The module `targets`
//! checks whether nodes and workloads exist.

use serde_json::{Map, Value};

use crate::object::fields::{flag, list, text};
use crate::object::key::is_object_name;
use crate::operation_job::spec::PARAMETERS_BYTES;
use crate::ops_job::addon::StepSource;
use crate::ops_job::check::check_parameters;
use crate::ops_job::inputs::{Inputs, Scope};
use crate::ops_job::quota::LABEL;
use crate::ops_job::ratio::Ratio;
use crate::ops_job::targets::{Extent, Filters};

/// The fields that only some types have.
pub(super) const FIELDS_OF_TYPES: [(&str, &[OpsType]); 10] = [
    ("pullSecrets", &[OpsType::Exportimage]),
    ("batchCount", &[OpsType::Addon, OpsType::Preflight, OpsType::Reboot]),
    ("availableRatio", &[OpsType::Addon, OpsType::Preflight, OpsType::Reboot]),
    ("securityUpgrade", &[OpsType::Addon, OpsType::Preflight]),
    ("image", &[OpsType::Preflight]),
    ("entryPoint", &[OpsType::Preflight]),
    ("env", &[OpsType::Preflight]),
    ("hostpath", &[OpsType::Preflight]),
    ("resource", &[OpsType::Preflight]),
    ("replica", &[OpsType::Preflight]),
];
/// The most pods whose logs the host reads at once.
const LOGS_AT_ONCE: usize = 8;
/// The most excluded nodes.
const EXCLUDED: usize = 5_000;
/// The most pull secrets of an export. The policy checks the permission to read each of them.
pub(super) const PULL_SECRETS: usize = 4;
/// The field of the time to live.
const TTL: &str = "ttlSecondsAfterFinished";

/// The type of a job.
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
    /// All types.
    pub const ALL: [Self; 5] = [Self::Addon, Self::Preflight, Self::Dumplog, Self::Reboot, Self::Exportimage];

    /// Returns the word of `spec.type`. It is also the action of the OperationJob.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Addon => "addon",
            Self::Preflight => "preflight",
            Self::Dumplog => "dumplog",
            Self::Reboot => "reboot",
            Self::Exportimage => "exportimage",
        }
    }

    /// Returns the type with this word.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.word() == word)
    }

    /// Returns the deadline of each target, in seconds.
    pub const fn deadline(self) -> i64 {
        match self {
            Self::Reboot | Self::Dumplog => 3_600,
            Self::Preflight | Self::Exportimage => 7_200,
            Self::Addon => 86_400,
        }
    }

    /// Returns true if the job works on nodes, each of which it needs for itself.
    pub const fn is_for_nodes(self) -> bool {
        matches!(self, Self::Addon | Self::Preflight | Self::Reboot)
    }
}

/// A field that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleBroken {
    /// The field, as a path below `spec`. Empty if the whole spec breaks the rule.
    pub field: String,
    /// The rule in words.
    pub rule: String,
}

impl RuleBroken {
    /// Returns the error for a rule about the whole spec.
    pub fn of_all(rule: impl Into<String>) -> Self {
        Self { field: String::new(), rule: rule.into() }
    }

    /// Returns the message for the owner of the resource.
    pub fn message(&self) -> String {
        let dot = if self.field.is_empty() { "" } else { "." };
        format!("spec{dot}{}: {}", self.field, self.rule)
    }
}

pub(super) fn refuse<T>(field: &str, rule: impl std::fmt::Display) -> Result<T, RuleBroken> {
    Err(RuleBroken { field: field.to_owned(), rule: rule.to_string() })
}

/// A checked spec with types.
#[derive(Clone, Debug, PartialEq)]
pub struct OpsSpec {
    /// The type of the job.
    pub kind: OpsType,
    /// The sources of an addon's steps.
    pub steps: Vec<StepSource>,
    /// The nodes or workloads that the job selects.
    pub scope: Scope,
    /// The rules that leave out selected nodes.
    pub filters: Filters,
    /// The most targets at once. `None` means all.
    pub batch: Option<usize>,
    /// The share of targets that must succeed.
    pub ratio: Ratio,
    /// Seconds from the creation of the job until the host ends it by force.
    pub timeout: Option<i64>,
    /// The parameters of the OperationJob.
    pub parameters: Map<String, Value>,
    /// The script that the parameters name by its digest.
    pub script: Option<String>,
    /// The container whose image the job exports. `None` means the first container of the pod.
    pub container: Option<String>,
    /// True if the job exports the file system of the container instead of its image.
    pub commits: bool,
    /// True if the host copies only the platforms that the registry has.
    pub available: bool,
    /// The pull secrets that the host may use for the copy, by namespace and name.
    pub pull_secrets: Vec<(String, String)>,
    /// Bytes of the longest label.
    pub label: usize,
}

/// The most node names for which the host reads each node by name.
const FEW: usize = 16;

impl OpsSpec {
    /// Returns how many of `targets` may fail.
    pub fn tolerated(&self, targets: usize) -> usize {
        match self.kind {
            OpsType::Dumplog => targets.saturating_sub(1),
            OpsType::Exportimage => 0,
            OpsType::Addon | OpsType::Preflight | OpsType::Reboot => self.ratio.tolerated(targets),
        }
    }

    /// Returns why the host must not accept a new job with this spec. An existing job may go on.
    pub fn refused_anew(&self) -> Option<RuleBroken> {
        let rule = || format!("a label has at most {LABEL} bytes, and this one has {}", self.label);
        (self.label > LABEL).then(|| RuleBroken { field: "inputs".to_owned(), rule: rule() })
    }

    /// Returns true if the job brings its own script. The author of such a job is root on nodes.
    pub fn has_own_script(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, StepSource::Script(_)))
    }

    /// Returns the host paths that a check sees.
    pub fn host_paths(&self) -> Vec<String> {
        let paths = self.parameters.get("hostPaths").and_then(Value::as_array).into_iter().flatten();
        paths.filter_map(|path| path.as_str().map(str::to_owned)).collect()
    }

    /// Returns true if the targets depend on nodes: the job works on nodes, or limits its pods to some nodes.
    pub fn asks_for_nodes(&self) -> bool {
        let Scope { nodes, hosts, .. } = &self.scope;
        self.kind.is_for_nodes() || !(nodes.is_empty() && hosts.is_empty() && self.filters.excluded.is_empty())
    }

    /// Returns the names of the nodes that decide the targets, if they are few. Returns no names if any node may matter.
    pub fn nodes_that_decide(&self) -> &[String] {
        let Scope { nodes, hosts, .. } = &self.scope;
        let alone = nodes.len() <= FEW
            && hosts.is_empty()
            && self.scope.workspace.is_none()
            && self.filters.excluded.is_empty();
        if alone { nodes } else { &[] }
    }
}

/// The host's values for jobs that do not set them.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Seconds from the creation to the end by force. 0 or less means no limit.
    pub timeout: i64,
    /// Seconds that a job stays after its end. A negative value means forever.
    pub ttl: i64,
}

impl Default for Defaults {
    fn default() -> Self {
        Self { timeout: 0, ttl: 3_600 }
    }
}

impl OpsSpec {
    /// Reads and checks a stored spec.
    ///
    /// # Errors
    /// If a field breaks a rule. The error names the first such field.
    pub fn read(spec: &Value, defaults: Defaults) -> Result<Self, RuleBroken> {
        let words = OpsType::ALL.map(OpsType::word).join(", ");
        let Some(kind) = text(spec, "/type").and_then(OpsType::read) else {
            return refuse("type", format_args!("one of {words}"));
        };
        let misplaced = FIELDS_OF_TYPES.iter().find(|(field, of)| !of.contains(&kind) && is_given(spec, field));
        if let Some((field, of)) = misplaced {
            let of = of.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ");
            return refuse(field, format_args!("for {of}, and the type is {}", kind.word()));
        }
        let inputs = Inputs::read(spec, kind)?;
        let seconds = |field: &str, default: i64| whole(spec, field).map(|seconds| seconds.unwrap_or(default));
        let count = |field: &str| match whole(spec, field)? {
            Some(count) if count < 0 => refuse(field, "0 or more"),
            count => Ok(count.and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0)),
        };
        let batch = count("batchCount")?.or(match kind {
            OpsType::Preflight => None,
            OpsType::Dumplog => Some(LOGS_AT_ONCE),
            OpsType::Addon | OpsType::Reboot | OpsType::Exportimage => Some(1),
        });
        let ratio = match spec.get("availableRatio").filter(|ratio| !ratio.is_null()) {
            None => Ratio::default(),
            Some(ratio) => {
                let Some(ratio) = ratio.as_str() else {
                    return refuse("availableRatio", "a decimal number as text, such as \"0.9\"");
                };
                Ratio::read(ratio).map_err(|rule| RuleBroken { field: "availableRatio".to_owned(), rule })?
            }
        };
        let excluded = list(spec, "/excludedNodes");
        let is_name = |name: &Value| name.as_str().is_some_and(|name| (1..=253).contains(&name.chars().count()));
        if excluded.len() > EXCLUDED || !excluded.iter().all(is_name) {
            return refuse("excludedNodes", format_args!("at most {EXCLUDED} names of nodes, of 1 to 253 characters"));
        }
        let pull_secrets = pull_secrets(spec)?;
        let filters = filters(spec, kind, count("replica")?.unwrap_or(0));
        let (parameters, script) = match kind {
            OpsType::Preflight => check_parameters(spec).map(|(parameters, script)| (parameters, Some(script)))?,
            OpsType::Addon => (flagged("waitUntilIdle", flag(spec, "/securityUpgrade").then_some(true)), None),
            _ => (flagged("drain", inputs.drain), None),
        };
        let (scope, container, commits) = (inputs.scope.clone(), inputs.container.clone(), inputs.commits());
        let label = inputs.label;
        let available = inputs.copies_what_is_there();
        let steps = inputs.steps();
        whole(spec, TTL)?;
        let bytes = Value::Object(parameters.clone()).to_string().len();
        if bytes > PARAMETERS_BYTES {
            let rule = format!(
                "together with image, hostpath and resource it has {bytes} bytes, and at most {PARAMETERS_BYTES} are allowed"
            );
            return refuse("env", rule);
        }
        Ok(Self {
            kind,
            scope,
            steps,
            filters,
            batch,
            ratio,
            timeout: Some(seconds("timeoutSecond", defaults.timeout)?).filter(|seconds| *seconds > 0),
            parameters,
            script,
            container,
            commits,
            available,
            pull_secrets,
            label,
        })
    }
}

/// Returns the namespaces and names of the pull secrets.
fn pull_secrets(spec: &Value) -> Result<Vec<(String, String)>, RuleBroken> {
    let named = |secret: &Value| {
        let (namespace, name) = (text(secret, "/namespace")?, text(secret, "/name")?);
        (is_object_name(namespace) && is_object_name(name)).then(|| (namespace.to_owned(), name.to_owned()))
    };
    let secrets = list(spec, "/pullSecrets");
    match secrets.iter().map(named).collect() {
        Some(all) if secrets.len() <= PULL_SECRETS => Ok(all),
        _ => refuse("pullSecrets", format_args!("at most {PULL_SECRETS} names of Secrets, each with its namespace")),
    }
}

/// Returns a parameter that is true or false, if it is set.
fn flagged(name: &str, flag: Option<bool>) -> Map<String, Value> {
    Map::from_iter(flag.map(|flag| (name.to_owned(), Value::Bool(flag))))
}

/// Returns the seconds that a job stays after its end, even if the rest of its spec is invalid. Returns `None` if it stays forever.
pub(super) fn time_to_live(spec: &Value, defaults: Defaults) -> Option<i64> {
    let given = whole(spec, TTL).ok().flatten();
    Some(given.unwrap_or(defaults.ttl)).filter(|seconds| *seconds >= 0)
}

/// Returns the rules of a spec that leave out selected nodes.
fn filters(spec: &Value, kind: OpsType, replica: usize) -> Filters {
    let is_check = kind == OpsType::Preflight;
    // Work in pods needs nodes that accept pods.
    let takes_pods = is_check || kind == OpsType::Addon;
    let keeps_off = match (takes_pods, flag(spec, "/isTolerateAll")) {
        (_, true) => Extent::Never,
        (true, false) => Extent::Always,
        (false, false) => Extent::Unnamed,
    };
    let excluded = list(spec, "/excludedNodes").iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    Filters {
        excluded,
        excludes_names_alone: flag(spec, "/securityUpgrade"),
        may_exclude_nobody: false,
        control_plane: if kind == OpsType::Reboot { Extent::Unnamed } else { Extent::Never },
        not_ready: if takes_pods { Extent::Always } else { Extent::Unnamed },
        unschedulable: keeps_off,
        spares_busy: is_check && flag(spec, "/securityUpgrade"),
        busy_last: kind == OpsType::Addon && flag(spec, "/securityUpgrade"),
        newest_alone: kind == OpsType::Exportimage,
        replica,
    }
}

/// Returns true if the field has a value that is not empty or zero.
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

/// Reads a whole number that fits 32 bits.
fn whole(spec: &Value, field: &str) -> Result<Option<i64>, RuleBroken> {
    let Some(value) = spec.get(field).filter(|value| !value.is_null()) else { return Ok(None) };
    match value.as_i64().filter(|number| i32::try_from(*number).is_ok()) {
        Some(number) => Ok(Some(number)),
        None => refuse(field, "a whole number of 32 bits"),
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
