//! The manifest of a plugin: its facts and its requests.
//!
//! The manifest is the JSON of the custom section `oarlock.manifest`. Errors name the field and the fix. Reading the manifest never runs
//! the plugin and grants nothing.

use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::grant::{Limits, ReadRule, TaskRule, Verb, WriteRule, field_covers};
use crate::names::{is_api_version, is_dns_label, is_kind, is_plain};
use crate::object_key::{Kind, ObjectKey};
use crate::schema::Schema;

/// The size of the largest manifest, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
/// The schema version that this host reads.
pub const SCHEMA: u64 = 1;

/// The JSON Schema of a manifest, for editors. [`Manifest::parse`] may refuse a manifest that the schema accepts.
pub const JSON_SCHEMA: &str = include_str!("manifest.schema.json");

/// The fields of pods that a drain needs: they show the pods of a node and the pods that may not go.
pub const DRAIN_READS: [&str; 3] = ["/spec/nodeName", "/spec/volumes", "/status/phase"];

/// The facts and requests of a plugin.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// The location of the JSON Schema of this form, for editors. The host ignores it.
    #[serde(rename = "$schema", default, skip_serializing)]
    pub editor_schema: Option<String>,
    /// The version of this form, 1.
    pub schema: u64,
    /// The name of the plugin, a DNS label.
    pub name: String,
    /// The version of the plugin.
    pub version: Version,
    /// The `spec.action` that the plugin implements.
    pub action: String,
    /// One sentence about the plugin.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The authors of the plugin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authors: Vec<String>,
    /// The licence of the plugin.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub license: String,
    /// The address of the plugin's source.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The kinds of targets that the plugin works on.
    pub target: Vec<TargetKind>,
    /// The plugin's use of the PodOpsLifecycle.
    #[serde(default)]
    pub lifecycle: Lifecycle,
    /// True if the plugin may start no target on which another job of any plugin has a hold. The mark `barred` counts as a hold.
    #[serde(default)]
    pub exclusive: bool,
    /// The interfaces of WASI that the component imports although the host denies each call of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<DeniedInterface>,
    /// The objects and fields that the plugin requests to read.
    #[serde(default)]
    pub reads: Vec<ReadRule>,
    /// The mutations that the plugin may propose.
    #[serde(default)]
    pub writes: Vec<WriteRule>,
    /// The host tasks that the plugin may request.
    #[serde(default)]
    pub tasks: Vec<TaskRule>,
    /// The JSON Schema of `spec.parameters`. It is absent if the plugin takes no parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// The JSON Schema of the operator's settings. It is absent if the plugin takes no settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
    /// The limits that the plugin requests.
    #[serde(default)]
    pub limits: Limits,
    /// The two compiled schemas.
    #[serde(skip)]
    schemas: Schemas,
}

/// A kind of target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TargetKind {
    /// A pod.
    #[default]
    Pod,
    /// A node.
    Node,
}

/// Interfaces of WASI that language runtimes import. The host offers them only to a plugin whose manifest says that it knows of the denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeniedInterface {
    /// The file system.
    Files,
    /// The network.
    Sockets,
}

/// The targets that go through the PodOpsLifecycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifecycle {
    /// No targets.
    #[default]
    Off,
    /// All targets.
    On,
    /// Targets with the label `kusionstack.io/control=true`.
    Controlled,
}

#[derive(Clone, Debug, Default)]
struct Schemas {
    parameters: Schema,
    config: Schema,
}

impl PartialEq for Manifest {
    fn eq(&self, other: &Self) -> bool {
        // The document determines the compiled schemas.
        serde_json::to_value(self).ok() == serde_json::to_value(other).ok()
    }
}

/// The reason why a manifest cannot be read.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The manifest is too long.
    #[error("the manifest has {bytes} bytes; shorten it to at most {MAX_BYTES}")]
    TooLarge {
        /// The length of the manifest.
        bytes: usize,
    },
    /// The manifest is not a JSON object.
    #[error("the manifest is not a JSON object: `oarlock plugin schema` prints what it has to be")]
    NotJson {
        /// The parse error. It is `None` if the manifest is JSON but not an object.
        #[source]
        source: Option<serde_json::Error>,
    },
    /// The manifest has a schema version that this host does not know.
    #[error(
        "the manifest has schema {found}, and this host reads schema {SCHEMA}: use a newer host or build the plugin with an older SDK"
    )]
    Schema {
        /// The schema version that the manifest names.
        found: String,
    },
    /// A field is missing, unknown or of another type. The cause names line and column.
    #[error("the manifest does not have the fields of schema {SCHEMA}")]
    Fields {
        /// The field and the problem.
        #[source]
        source: serde_json::Error,
    },
    /// A field has an invalid value.
    #[error("the manifest's `{field}` is refused: {problem}")]
    Field {
        /// The path of the field.
        field: String,
        /// The problem and its fix.
        problem: String,
    },
}

/// The fields with a schema, whose texts are not names.
const SCHEMAS: [&str; 2] = ["parameters", "config"];

impl Manifest {
    /// Parses a manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MAX_BYTES {
            return Err(ManifestError::TooLarge { bytes: bytes.len() });
        }
        let document: Value =
            serde_json::from_slice(bytes).map_err(|source| ManifestError::NotJson { source: Some(source) })?;
        let Some(fields) = document.as_object() else { return Err(ManifestError::NotJson { source: None }) };
        // The schema version is checked first, because the parser would call the fields of a later schema unknown.
        match fields.get("schema") {
            Some(schema) if schema.as_u64() == Some(SCHEMA) => {}
            Some(other) => return Err(ManifestError::Schema { found: other.to_string() }),
            None => return Err(refused("schema", format!("it is missing; write `\"schema\": {SCHEMA}`"))),
        }
        let mut shown = fields.iter().filter(|(name, _)| !SCHEMAS.contains(&name.as_str()));
        shown.try_for_each(|(name, value)| check_text(name, value))?;
        let mut manifest: Self = serde_json::from_slice(bytes).map_err(|source| ManifestError::Fields { source })?;
        manifest.check_names()?;
        manifest.check_reads()?;
        manifest.check_writes()?;
        let schema = |field: &str, schema: Option<&Value>| Schema::compile(schema).map_err(|why| refused(field, why));
        manifest.schemas = Schemas {
            parameters: schema("parameters", manifest.parameters.as_ref())?,
            config: schema("config", manifest.config.as_ref())?,
        };
        Ok(manifest)
    }

    /// Returns true if the plugin declares that it reads the field at `pointer` of `kind`.
    pub fn declares_read(&self, kind: &Kind, pointer: &str) -> bool {
        let rules = self.reads.iter().filter(|rule| rule.concerns(kind));
        rules.flat_map(|rule| &rule.fields).any(|field| field_covers(field, pointer))
    }

    /// Returns true if the plugin declares that it reads objects of `kind`.
    pub fn declares_kind(&self, kind: &Kind) -> bool {
        self.reads.iter().any(|rule| rule.concerns(kind))
    }

    /// Returns true if the plugin works in a cluster that does not serve `kind`, because each read of `kind` is optional.
    pub fn can_lack(&self, kind: &Kind) -> bool {
        let mut rules = self.reads.iter().filter(|rule| rule.concerns(kind)).peekable();
        rules.peek().is_some() && rules.all(|rule| rule.optional)
    }

    /// Returns true if the plugin requests drains of nodes.
    pub fn drains(&self) -> bool {
        self.writes.iter().any(|rule| rule.verb == Verb::Drain)
    }

    /// Returns true if the plugin works on targets of `kind`.
    pub fn takes(&self, kind: TargetKind) -> bool {
        self.target.contains(&kind)
    }

    /// Validates the parameters of a job against the schema. The error begins with the place, as in `spec.parameters/strategy`.
    pub fn check_parameters(&self, parameters: &Value) -> Result<(), String> {
        self.schemas.parameters.check("spec.parameters", parameters)
    }

    /// Validates the operator's settings against the schema. The error names the place.
    pub fn check_config(&self, config: &Value) -> Result<(), String> {
        self.schemas.config.check("config", config)
    }

    fn check_names(&self) -> Result<(), ManifestError> {
        if !is_dns_label(&self.name) {
            let problem = "use a DNS label: at most 63 lower-case letters, digits and `-`, not first or last";
            return Err(refused("name", format!("{:?}: {problem}", self.name)));
        }
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if self.action.is_empty() || self.action.len() > 63 || !self.action.chars().all(word) {
            let problem = "use at most 63 letters, digits and `-`";
            return Err(refused("action", format!("{:?}: {problem}", self.action)));
        }
        if self.target.is_empty() {
            return Err(refused("target", "it is empty; name `Pod`, `Node` or both".to_owned()));
        }
        if self.limits.max_deadline_seconds.is_some() {
            return Err(refused("limits.maxDeadlineSeconds", "only a grant says so; leave it out".to_owned()));
        }
        if self.drains()
            && let Some(field) = DRAIN_READS.iter().find(|field| !self.declares_read(&Kind::pod(), field))
        {
            let problem = format!(
                "`drain` works on the pods of a node by what they say of themselves: add {field} of `Pod` of `v1`"
            );
            return Err(refused("reads", problem));
        }
        let mut tasks = self.tasks.iter().enumerate();
        tasks.try_for_each(|(at, rule)| rule.check_asked().map_err(|problem| refused(format!("tasks[{at}]"), problem)))
    }

    fn check_reads(&self) -> Result<(), ManifestError> {
        if self.takes(TargetKind::Node) && !self.declares_kind(&Kind::node()) {
            let problem =
                "`target` has Node, and the host watches nodes only for who asks for that: add `Node` of `v1`";
            return Err(refused("reads", problem.to_owned()));
        }
        for (at, rule) in self.reads.iter().enumerate() {
            check_kind(&format!("reads[{at}]"), &rule.api_version, &rule.kind, &rule.reason)?;
            for (n, field) in rule.fields.iter().enumerate() {
                if !is_pointer(field) {
                    let problem = format!("{field:?} is not a JSON Pointer such as `/status/conditions`");
                    return Err(refused(format!("reads[{at}].fields[{n}]"), problem));
                }
            }
        }
        Ok(())
    }

    fn check_writes(&self) -> Result<(), ManifestError> {
        for (at, rule) in self.writes.iter().enumerate() {
            let path = format!("writes[{at}]");
            check_kind(&path, &rule.api_version, &rule.kind, &rule.reason)?;
            let keys = rule.labels.len() + rule.annotations.len() + rule.finalizers.len();
            match rule.verb {
                Verb::Metadata if keys == 0 => {
                    return Err(refused(
                        path,
                        "name the `labels`, `annotations` or `finalizers` it changes".to_owned(),
                    ));
                }
                Verb::Metadata => {}
                Verb::Schedulable | Verb::Taint | Verb::Drain
                    if Kind::new(&rule.api_version, &rule.kind) != Kind::node() =>
                {
                    let problem = format!("`{}` is for `Node` of `v1`", rule.verb.word());
                    return Err(refused(path, problem));
                }
                _ if keys > 0 => {
                    let problem = "`labels`, `annotations` and `finalizers` belong to the verb `metadata`";
                    return Err(refused(path, problem.to_owned()));
                }
                _ => {}
            }
            if let Some(name) = rule.subresources.iter().find(|name| !is_dns_label(name)) {
                return Err(refused(format!("{path}.subresources"), format!("{name:?} is no name of a subresource")));
            }
            if rule.verb != Verb::Patch && !rule.subresources.is_empty() {
                return Err(refused(path, "`subresources` belong to the verb `patch`".to_owned()));
            }
        }
        Ok(())
    }
}

impl DeniedInterface {
    /// All interfaces that the host denies.
    pub const ALL: [Self; 2] = [Self::Files, Self::Sockets];

    /// Returns the package of WASI, as the beginning of the names of its imports.
    pub fn package(self) -> &'static str {
        match self {
            Self::Files => "wasi:filesystem/",
            Self::Sockets => "wasi:sockets/",
        }
    }

    /// Returns the word in `denied` of a manifest.
    pub fn word(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Sockets => "sockets",
        }
    }
}

impl TargetKind {
    /// All kinds of targets.
    pub const ALL: [Self; 2] = [Self::Pod, Self::Node];

    /// Returns the word of a job's `spec.targetKind`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Node => "Node",
        }
    }

    /// Returns the word for use in a sentence.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Node => "node",
        }
    }

    /// Returns the kind of the target objects.
    pub fn kind(self) -> Kind {
        match self {
            Self::Pod => Kind::pod(),
            Self::Node => Kind::node(),
        }
    }

    /// Returns the object of a target of a job in `namespace`.
    pub fn object(self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::seen_from(namespace, &self.kind(), name)
    }
}

fn refused(field: impl Into<String>, problem: String) -> ManifestError {
    ManifestError::Field { field: field.into(), problem }
}

/// Checks that each text is one plain line. An admin reads the manifest on a terminal and in lines that he copies, and decides by it.
fn check_text(path: &str, value: &Value) -> Result<(), ManifestError> {
    match value {
        Value::String(text) if !is_plain(text) => {
            Err(refused(path, "it has a control character; write plain text, on one line".to_owned()))
        }
        Value::Array(values) => {
            values.iter().enumerate().try_for_each(|(at, value)| check_text(&format!("{path}[{at}]"), value))
        }
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            let name = if is_plain(name) { name } else { "?" };
            check_text(&format!("{path}.{name}"), value)
        }),
        _ => Ok(()),
    }
}

fn check_kind(path: &str, api_version: &str, kind: &str, reason: &str) -> Result<(), ManifestError> {
    if api_version.is_empty() || kind.is_empty() || api_version.contains('*') || kind.contains('*') {
        let problem = "name one `apiVersion` and one `kind`, without a pattern, for the host has to watch it";
        return Err(refused(path, problem.to_owned()));
    }
    if !is_api_version(api_version) {
        return Err(refused(format!("{path}.apiVersion"), format!("{api_version:?} is none; write `v1` or `apps/v1`")));
    }
    if !is_kind(kind) {
        return Err(refused(format!("{path}.kind"), format!("{kind:?} is none; write `Pod`, say")));
    }
    if reason.trim().is_empty() {
        return Err(refused(format!("{path}.reason"), "say why the plugin wants it; the admin reads this".to_owned()));
    }
    Ok(())
}

fn is_pointer(text: &str) -> bool {
    let escaped = text.split('~').skip(1).all(|rest| rest.starts_with('0') || rest.starts_with('1'));
    text.starts_with('/') && escaped && !text.trim_end_matches('*').contains('*')
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
