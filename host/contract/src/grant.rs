//! The requests of plugins and the grants of admins, in one form.
//!
//! This module parses `ActionPlugin` documents and compares them with the requests of a manifest. A pattern may end in `*`. The parser is
//! strict: an unknown field is an error.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

pub use crate::host_path::ANY_HOST_PATH;
use crate::host_path::{is_in, may_be_seen};
use crate::manifest::{Manifest, TargetKind};
use crate::names::is_dns_label;
use crate::object_key::Kind;
pub use crate::script_rule::ScriptRule;
use crate::task::{CHECK_POD, COPY_IMAGE};
pub use crate::task_rule::ANY_REGISTRY;
pub use crate::task_rule::TaskRule;

/// Returns true if `text` matches `pattern`, which may end in `*`.
pub fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => pattern == text,
    }
}

/// Returns true if `granted` matches every text that `asked` matches.
pub fn covers(granted: &str, asked: &str) -> bool {
    match (granted.strip_suffix('*'), asked.strip_suffix('*')) {
        (Some(granted), Some(asked)) => asked.starts_with(granted),
        (Some(granted), None) => asked.starts_with(granted),
        (None, Some(_)) => false,
        (None, None) => granted == asked,
    }
}

/// Returns true if the field at `pointer` is at or below `declared`, which may end in `*`.
pub fn field_covers(declared: &str, pointer: &str) -> bool {
    if let Some(prefix) = declared.strip_suffix('*') {
        return pointer.starts_with(prefix);
    }
    pointer.strip_prefix(declared).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A kind and its fields that a plugin may read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadRule {
    /// The `apiVersion` of the objects.
    pub api_version: String,
    /// The `kind` of the objects.
    pub kind: String,
    /// The JSON Pointers of the fields. An empty list means metadata only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// True if the plugin works without the kind. The host treats a cluster that does not serve the kind as a cluster without such objects.
    /// The field has no meaning in a grant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// The plugin's reason. A grant needs no reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A verb on a kind, and the parts of its objects that a plugin may change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteRule {
    /// The operation of the rule.
    pub verb: Verb,
    /// The `apiVersion` of the objects.
    pub api_version: String,
    /// The `kind` of the objects.
    pub kind: String,
    /// The keys of labels, for `metadata`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The keys of annotations, for `metadata`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub annotations: Vec<String>,
    /// The names of finalizers, for `metadata`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// The names of subresources, for `patch`. An empty list means only the object itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<String>,
    /// The plugin's reason. A grant needs no reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The operation of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verb {
    /// Changes labels, annotations and finalizers.
    Metadata,
    /// Creates an object.
    Create,
    /// Applies a JSON Merge Patch.
    Patch,
    /// Evicts a pod.
    Evict,
    /// Deletes an object.
    Delete,
    /// Cordons and uncordons a node.
    Schedulable,
    /// Taints a node.
    Taint,
    /// Drains a node.
    Drain,
}

impl Verb {
    /// Returns the word of the manifest for this verb.
    pub fn word(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Evict => "evict",
            Self::Delete => "delete",
            Self::Schedulable => "schedulable",
            Self::Taint => "taint",
            Self::Drain => "drain",
        }
    }
}

/// The limits of calls, requested or granted. The host's defaults replace absent limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// The time of a call, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_milliseconds: Option<u32>,
    /// The memory of an instance.
    #[serde(rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// The size of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u32>,
    /// The size of all log lines of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u32>,
    /// The number of calls of host functions during a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_calls: Option<u32>,
    /// The number of targets in `Processing` at once, over all jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets_in_flight: Option<u32>,
    /// The longest time of a target, in seconds. Only a grant may set this limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_deadline_seconds: Option<u32>,
}

/// The grant of one plugin: the name and the `spec` of an `ActionPlugin`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Grant {
    /// The name of the plugin, from `metadata.name`.
    #[serde(skip)]
    pub name: String,
    /// True if any version of the plugin that requests no more may use the grant.
    pub any_version: bool,
    /// The digest, `sha256:...`, of the only component that may use the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The namespaces of the jobs that the plugin may work for.
    pub namespaces: Vec<String>,
    /// The objects and fields that the plugin may read.
    pub reads: Vec<ReadRule>,
    /// The mutations that the plugin may propose.
    pub writes: Vec<WriteRule>,
    /// The tasks that the plugin may request.
    pub tasks: Vec<TaskRule>,
    /// The limits that differ from the host's defaults.
    pub limits: Limits,
    /// The shortest grace period that the plugin may give a pod that it evicts, drains or deletes, in seconds. The default is 1. With 0,
    /// the API server removes a pod before its processes have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_grace_period_seconds: Option<u32>,
    /// The Kubernetes identity under which the host makes the plugin's mutations. Without it, the host uses its own account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// The configuration for the plugin, a JSON object.
    pub config: Option<Value>,
    /// True if the plugin serves its action before other plugins of the same action.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub preferred: bool,
}

/// The Kubernetes identity of a plugin. Its namespace comes from a flag of the host, so that a grant cannot name an account elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// The name of the ServiceAccount, a DNS label. The account need not exist as an object.
    pub service_account: String,
}

/// The default namespace of the accounts of plugins.
pub const PLUGIN_ACCOUNTS_NAMESPACE: &str = "oarlock-plugins";

/// The reason why a document cannot be read as a grant.
#[derive(Debug, Error)]
pub enum GrantError {
    /// The document is not an ActionPlugin of a known version.
    #[error("this is not a grant: expected apiVersion {API_VERSION} and kind {KIND}, found `{api_version}` `{kind}`")]
    Header {
        /// The `apiVersion` of the document.
        api_version: String,
        /// The `kind` of the document.
        kind: String,
    },
    /// The document names no plugin.
    #[error("this grant names no plugin: give it `metadata: {{name: PLUGIN}}`")]
    Name,
    /// The `spec` of the document is not the spec of an ActionPlugin.
    #[error("the grant of `{name}` could not be read from its `spec`")]
    Spec {
        /// The name of the plugin.
        name: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A value in the document is invalid.
    #[error("the grant of `{name}` is refused: {problem}")]
    Value {
        /// The name of the plugin.
        name: String,
        /// The problem and its fix.
        problem: String,
    },
}

/// The `apiVersion` of grants.
pub const API_VERSION: &str = "oarlock.dev/v1alpha1";
/// The `kind` of grants.
pub const KIND: &str = "ActionPlugin";

impl Grant {
    /// Returns the grant of all requests of a manifest, in all namespaces and for any version.
    pub fn of_all(manifest: &Manifest) -> Self {
        Self {
            name: manifest.name.clone(),
            any_version: true,
            namespaces: vec!["*".to_owned()],
            reads: manifest.reads.iter().map(|rule| ReadRule { optional: false, ..rule.clone() }).collect(),
            writes: manifest.writes.clone(),
            tasks: manifest.tasks.clone(),
            ..Self::default()
        }
    }

    /// Parses the grant in `document`, an `ActionPlugin`.
    pub fn parse(document: &Value) -> Result<Self, GrantError> {
        let text = |pointer| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("/apiVersion"), text("/kind"));
        if api_version != API_VERSION || kind != KIND {
            return Err(GrantError::Header { api_version, kind });
        }
        let name = text("/metadata/name");
        if name.is_empty() {
            return Err(GrantError::Name);
        }
        Self::of_spec(&name, document.get("spec"))
    }

    /// Parses the grant in the `spec` of the ActionPlugin with this name. A missing spec grants nothing.
    ///
    /// # Errors
    /// If the spec has an unknown field or an invalid value.
    pub fn of_spec(name: &str, spec: Option<&Value>) -> Result<Self, GrantError> {
        let spec = spec.filter(|spec| !spec.is_null()).cloned();
        let name = name.to_owned();
        let mut grant: Self = serde_json::from_value(spec.unwrap_or_else(|| Value::Object(Default::default())))
            .map_err(|source| GrantError::Spec { name: name.clone(), source })?;
        grant.name = name;
        grant.check().map_err(|problem| GrantError::Value { name: grant.name.clone(), problem })?;
        Ok(grant)
    }

    fn check(&self) -> Result<(), String> {
        if let Some(digest) = &self.digest
            && digest
                .strip_prefix("sha256:")
                .is_none_or(|hex| hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            return Err(format!("`digest: {digest}` is not `sha256:` and 64 hexadecimal digits"));
        }
        if self.config.as_ref().is_some_and(|config| !config.is_object()) {
            return Err("`config` must be an object".to_owned());
        }
        if let Some(Identity { service_account }) = self.identity.as_ref()
            && !is_dns_label(service_account)
        {
            return Err(format!(
                "`identity.serviceAccount: {service_account}` is not the name of a ServiceAccount: give a DNS label, without the \
                 namespace, which `--plugin-accounts-namespace` sets for all plugins"
            ));
        }
        if self.limits.max_deadline_seconds == Some(0) {
            return Err("`limits.maxDeadlineSeconds` must be at least 1".to_owned());
        }
        let reads = self.reads.iter().flat_map(|rule| rule.fields.iter().chain([&rule.api_version, &rule.kind]));
        let writes = self.writes.iter().flat_map(|rule| {
            let keys = rule.labels.iter().chain(&rule.annotations).chain(&rule.finalizers).chain(&rule.subresources);
            keys.chain([&rule.api_version, &rule.kind])
        });
        let tasks = self.tasks.iter().flat_map(|rule| rule.builtins.iter().chain([&rule.name]));
        let mut patterns = reads.chain(writes).chain(tasks).chain(&self.namespaces);
        self.tasks.iter().try_for_each(TaskRule::check_granted)?;
        match patterns.find(|pattern| pattern.trim_end_matches('*').contains('*') || pattern.ends_with("**")) {
            Some(pattern) => Err(format!("`{pattern}`: a pattern may have one `*`, at its end")),
            None => Ok(()),
        }
    }

    /// Returns true if the grant covers at least a part of this kind of task.
    pub fn allows_task(&self, kind: &str) -> bool {
        self.tasks.iter().any(|rule| covers(&rule.name, kind))
    }

    /// Returns the hosts besides the registries themselves from which the host may read images.
    pub fn hosts_of_copies(&self) -> Vec<String> {
        let rules = self.tasks.iter().filter(|rule| covers(&rule.name, COPY_IMAGE));
        rules.flat_map(|rule| &rule.auth_hosts).cloned().collect()
    }

    /// Returns true if the grant covers tasks that pods perform on nodes.
    pub fn has_tasks_on_nodes(&self) -> bool {
        self.tasks.iter().any(|rule| !rule.is_of_host())
    }

    /// Returns true if the grant covers tasks by which a job works on nodes that it names.
    pub fn reaches_nodes(&self) -> bool {
        self.tasks.iter().any(TaskRule::reaches_nodes)
    }

    /// Returns true if a check may see this directory of a node.
    pub fn shows_host_path(&self, path: &str) -> bool {
        may_be_seen(path) && self.host_paths_of_checks().any(|own| own == ANY_HOST_PATH || is_in(own, path))
    }

    /// Returns the directories of a node that the plugin's checks may see.
    pub fn host_paths_of_checks(&self) -> impl Iterator<Item = &String> {
        self.tasks.iter().filter(|rule| covers(&rule.name, CHECK_POD)).flat_map(|rule| &rule.host_paths)
    }

    /// Returns true if a job of `namespace` may use the plugin.
    pub fn allows_namespace(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|pattern| matches(pattern, namespace))
    }

    /// Returns the name of the ServiceAccount as which the host makes the plugin's mutations, if the grant names one.
    pub fn account(&self) -> Option<&str> {
        self.identity.as_ref().map(|identity| identity.service_account.as_str())
    }

    /// Returns the shortest grace period that the plugin may give a pod, in seconds.
    pub fn least_grace_seconds(&self) -> u32 {
        self.min_grace_period_seconds.unwrap_or(1)
    }

    /// Returns the configuration, or `{}` if it is absent.
    pub fn config(&self) -> Value {
        self.config.clone().unwrap_or_else(|| Value::Object(Default::default()))
    }
}

impl ReadRule {
    /// Returns true if the rule applies to `kind`.
    pub fn concerns(&self, kind: &Kind) -> bool {
        covers(&self.api_version, &kind.api_version) && covers(&self.kind, &kind.kind)
    }
}

impl WriteRule {
    /// Returns true if the rule applies to `verb` on `kind`.
    pub fn concerns(&self, verb: Verb, kind: &Kind) -> bool {
        self.verb == verb && covers(&self.api_version, &kind.api_version) && covers(&self.kind, &kind.kind)
    }
}

/// Returns the lines that `grant` lacks for `manifest` in the component with this `digest`. An admin writes the lines below `spec`. The
/// result is empty if every request is granted.
pub fn missing(manifest: &Manifest, grant: Option<&Grant>, digest: &str) -> Vec<String> {
    let nothing = Grant::default();
    let grant = grant.unwrap_or(&nothing);
    let mut lines = Vec::new();
    if !grant.any_version && !grant.digest.as_ref().is_some_and(|granted| granted.eq_ignore_ascii_case(digest)) {
        lines.push(format!("digest: {digest}   # or anyVersion: true"));
    }
    if grant.namespaces.is_empty() {
        let line = match manifest.target.as_slice() {
            [TargetKind::Node] => "namespaces: [NAMESPACE]   # those whose editors may work on nodes",
            _ => "namespaces: [NAMESPACE]   # those whose jobs may use it, or \"*\"",
        };
        lines.push(line.to_owned());
    }
    lines.extend(manifest.reads.iter().filter_map(|asked| missing_read(asked, grant)));
    lines.extend(manifest.writes.iter().filter_map(|asked| missing_write(asked, grant)));
    let tasks = manifest.tasks.iter().filter_map(|asked| asked.at_least()?.lacking(&grant.tasks));
    lines.extend(tasks.map(|lacking| format!("tasks: [{lacking}]")));
    lines
}

fn missing_read(asked: &ReadRule, grant: &Grant) -> Option<String> {
    let kind = Kind::new(&asked.api_version, &asked.kind);
    let rules: Vec<_> = grant.reads.iter().filter(|rule| rule.concerns(&kind)).collect();
    let has = |field: &str| {
        let wanted = field.trim_end_matches('*');
        rules.iter().any(|rule| rule.fields.iter().any(|f| covers(f, field) || field_covers(f, wanted)))
    };
    let fields: Vec<_> = asked.fields.iter().filter(|field| !has(field)).cloned().collect();
    if !rules.is_empty() && fields.is_empty() {
        return None;
    }
    let listed = list("fields", &fields);
    Some(format!("reads: [{{apiVersion: {}, kind: {}{listed}}}]", asked.api_version, asked.kind))
}

fn missing_write(asked: &WriteRule, grant: &Grant) -> Option<String> {
    let kind = Kind::new(&asked.api_version, &asked.kind);
    let rules: Vec<_> = grant.writes.iter().filter(|rule| rule.concerns(asked.verb, &kind)).collect();
    let lacking = |asked: &[String], of: fn(&WriteRule) -> &Vec<String>| -> Vec<String> {
        let has = |key: &String| rules.iter().any(|rule| of(rule).iter().any(|granted| covers(granted, key)));
        asked.iter().filter(|key| !has(key)).cloned().collect()
    };
    let parts = [
        ("labels", lacking(&asked.labels, |rule| &rule.labels)),
        ("annotations", lacking(&asked.annotations, |rule| &rule.annotations)),
        ("finalizers", lacking(&asked.finalizers, |rule| &rule.finalizers)),
        ("subresources", lacking(&asked.subresources, |rule| &rule.subresources)),
    ];
    if !rules.is_empty() && parts.iter().all(|(_, keys)| keys.is_empty()) {
        return None;
    }
    let listed: String = parts.iter().map(|(name, keys)| list(name, keys)).collect();
    let verb = asked.verb.word();
    Some(format!("writes: [{{verb: {verb}, apiVersion: {}, kind: {}{listed}}}]", asked.api_version, asked.kind))
}

/// Returns `, name: ["a", "b"]`, or nothing for an empty list. The entries are quoted, because a `*` or a `/` at the start has a meaning in
/// YAML.
pub(crate) fn list(name: &str, entries: &[String]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let quoted: Vec<_> = entries.iter().map(|entry| format!("{entry:?}")).collect();
    format!(", {name}: [{}]", quoted.join(", "))
}

#[cfg(test)]
#[path = "grant_tests.rs"]
mod tests;
