//! The tasks that plugins request: their kinds and arguments.
//!
//! [`TaskRequest::task`] takes a request from a plugin's proposal, and returns the task or the reason why no host performs it. This module
//! does not know how the host performs a task.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::host_path::{is_in, may_be_seen};
use crate::names::{is_dns_label, is_plain, is_qualified_name, is_quantity, is_variable};
use crate::object_key::Kind;

/// The kind of a task that runs a command as root on the target's node.
pub const RUN_ON_NODE: &str = "run-on-node";
/// The kind of a task that runs an unprivileged pod on the target's node.
pub const CHECK_POD: &str = "check-pod";
/// The kind of a task in which the host itself collects the logs of the target, a pod.
pub const COLLECT_LOGS: &str = "collect-logs";
/// The kind of a task in which the host itself copies an image from one registry to another.
pub const COPY_IMAGE: &str = "copy-image";
/// The folder of copies in the registry that the host exports to.
pub const EXPORTS: &str = "custom/";
/// The folder of committed containers. Each namespace has a folder below it.
pub const COMMITS: &str = "custom/commits/";
/// The folder of images that plugins copy outside OpsJobs. Each plugin has a folder in it, with a folder for each namespace.
pub const PLUGIN_COPIES: &str = "custom/plugins/";
/// The word of [`Builtin::Commit`].
pub(crate) const COMMIT: &str = "commit";
/// The most tasks of one target.
pub const MAX_TASKS: usize = 8;
/// The longest time of a task, in seconds.
pub const LONGEST_SECONDS: u32 = 3600;
/// The time of a task that sets no time, in seconds.
const DEFAULT_SECONDS: u32 = 600;
/// The longest name of an image in its registry.
const MAX_NAME: usize = 255;
/// The size of the longest script, in bytes.
const MAX_SCRIPT_BYTES: usize = 64 * 1024;
/// The capabilities that a grant may give to a check. A check has no other capabilities. With `DAC_READ_SEARCH`, root reads every file of
/// the file systems that it sees, whoever owns the file. By handle, root also reads files outside.
pub const CAPABILITIES: [&str; 1] = ["DAC_READ_SEARCH"];
/// The directory of the script in the pod of a task.
pub const TASK_DIRECTORY: &str = "/task";

/// A task that a plugin requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskRequest {
    /// The name of the task, unique for the target: a DNS label.
    pub name: String,
    /// The kind of the task, such as [`RUN_ON_NODE`].
    pub kind: String,
    /// The arguments of the kind.
    pub arguments: Value,
}

/// A task with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// A command on the target's node.
    RunOnNode(RunOnNode),
    /// A pod on the target's node.
    CheckPod(Box<CheckPod>),
    /// The logs of the target's containers, up to the creation of the job.
    CollectLogs,
    /// A copy of an image that the plugin names, into the registry that the host exports to.
    CopyImage(CopyImage),
    /// A copy of the image of an OpsJob, into the same registry. The host takes all other values from the status of the OpsJob.
    ExportImage,
}

/// Returns true for kinds of tasks that the host itself performs without a pod. Such a task may begin again and continues where it was.
pub fn is_of_host(kind: &str) -> bool {
    matches!(kind, COLLECT_LOGS | COPY_IMAGE)
}

/// The arguments of a task without arguments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArguments {}

/// A copy of an image outside an OpsJob, with everything that the image refers to. The host pulls the image anonymously, without a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CopyImage {
    /// The image with its registry and a digest or tag, such as `docker.io/library/busybox@sha256:...`.
    pub source: String,
    /// The name of the copy with its tag in the registry that the host exports to. The name is in `custom/plugins/`, below the name of the
    /// plugin and the namespace.
    pub target: String,
    /// The tag of the copy if the tag of `target` belongs to another image.
    pub otherwise: String,
    /// The digest by which a runtime knows the image: the digest of its configuration or of a manifest. The host does not copy an image
    /// that has another digest by now.
    pub runs: Option<String>,
    /// True if the host copies the rest of an index with missing parts.
    #[serde(default)]
    pub available: bool,
}

/// Returns the folder for the copies of this plugin on pods of this namespace.
pub fn plugin_folder(plugin: &str, namespace: &str) -> String {
    format!("{PLUGIN_COPIES}{plugin}/{namespace}/")
}

/// A command that runs once, as root, on the target, a node. [`Builtin::Commit`] runs on the node of the target, a pod.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunOnNode {
    /// A command of the host.
    pub builtin: Option<Builtin>,
    /// A script of the plugin.
    pub script: Option<Script>,
    /// The time after which the host ends the command, in seconds.
    #[serde(default = "default_seconds")]
    pub timeout_seconds: u32,
    /// The command does nothing on a node with another boot id.
    pub expect_boot_id: Option<String>,
    /// The container that [`Builtin::Commit`] commits.
    pub commit: Option<CommitContainer>,
}

/// A container of the target, a pod, whose file system becomes an image in the registry that the host exports to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommitContainer {
    /// The name of the container.
    pub container: String,
    /// The name of the image in that registry, with a tag that no other image has.
    pub target: String,
}

/// A command of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Builtin {
    /// Reboots the node, 3 s after the command reported it.
    Reboot,
    /// Makes an image of a container and pushes it.
    Commit,
}

impl Builtin {
    /// Returns the word of the arguments.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reboot => "reboot",
            Self::Commit => COMMIT,
        }
    }
}

/// A script and its interpreter. It has either `text` or `sha256`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    /// The text of the script.
    pub text: Option<String>,
    /// The digest of a stored script.
    pub sha256: Option<Digest>,
    /// The origin of a stored script.
    #[serde(default)]
    pub origin: ScriptOrigin,
    /// The path of a program on the node that gets the path of the script.
    #[serde(default = "shell")]
    pub interpreter: String,
}

/// The origin of a stored script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ScriptOrigin {
    /// The script comes from a template.
    #[default]
    Template,
    /// The script comes from the OpsJob itself.
    Input,
}

/// A SHA-256 as 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Digest(String);

impl Digest {
    /// Returns the digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_digest = text.len() == 64 && text.bytes().all(is_digit);
        if is_digest { Ok(Self(text)) } else { Err("a SHA-256 has 64 hexadecimal digits in lower case".to_owned()) }
    }
}

/// The location of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptSource<'a> {
    /// The text of the script itself.
    Text(&'a str),
    /// A stored script in the namespace of the pods of tasks, with this digest.
    Stored(&'a Digest),
}

/// The script of a check: its text, or the digest of a stored script.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a script is text, or an object with its `sha256`")]
pub enum CheckScript {
    /// The text of the script.
    Text(String),
    /// A stored script.
    Stored(StoredScript),
}

/// A stored script.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredScript {
    /// The digest of the script.
    pub sha256: Digest,
}

/// A pod that checks a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckPod {
    /// The image of the pod.
    pub image: String,
    /// The script that `/bin/sh` of the image runs.
    pub script: Option<CheckScript>,
    /// The command in place of a script. An empty list means the command of the image.
    #[serde(default)]
    pub command: Vec<String>,
    /// The arguments of the script or the command.
    #[serde(default)]
    pub args: Vec<String>,
    /// The resource requests and limits, by resource.
    #[serde(default)]
    pub resources: BTreeMap<String, String>,
    /// The environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The size of `/dev/shm`.
    pub shared_memory: Option<String>,
    /// The directories of the node that the pod reads, at the same paths.
    #[serde(default)]
    pub host_paths: Vec<String>,
    /// The capabilities of the pod, from [`CAPABILITIES`].
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// True if the pod tolerates every taint.
    #[serde(default)]
    pub tolerate_all: bool,
    /// The time after which the host ends the pod, in seconds.
    #[serde(default = "default_seconds")]
    pub timeout_seconds: u32,
}

fn default_seconds() -> u32 {
    DEFAULT_SECONDS
}

fn shell() -> String {
    "/bin/sh".to_owned()
}

impl Task {
    /// Returns the kind of the targets of this task.
    pub fn target(&self) -> Kind {
        match self {
            Self::RunOnNode(RunOnNode { commit: None, .. }) | Self::CheckPod(_) => Kind::node(),
            Self::RunOnNode(_) | Self::CollectLogs | Self::CopyImage(_) | Self::ExportImage => Kind::pod(),
        }
    }

    /// Returns the script of the task, if it has one.
    pub fn script(&self) -> Option<ScriptSource<'_>> {
        match self {
            Self::RunOnNode(run) => run.script.as_ref().and_then(Script::source),
            Self::CheckPod(check) => check.script.as_ref().map(CheckScript::source),
            Self::CollectLogs | Self::CopyImage(_) | Self::ExportImage => None,
        }
    }
}

impl CheckScript {
    fn source(&self) -> ScriptSource<'_> {
        match self {
            Self::Text(text) => ScriptSource::Text(text),
            Self::Stored(stored) => ScriptSource::Stored(&stored.sha256),
        }
    }
}

impl Script {
    fn source(&self) -> Option<ScriptSource<'_>> {
        match (&self.text, &self.sha256) {
            (Some(text), None) => Some(ScriptSource::Text(text)),
            (None, Some(digest)) => Some(ScriptSource::Stored(digest)),
            _ => None,
        }
    }
}

impl TaskRequest {
    /// Parses the task.
    ///
    /// # Errors
    ///
    /// If the request is invalid, with the problem and the fix.
    pub fn task(&self) -> Result<Task, String> {
        if !is_dns_label(&self.name) {
            return Err("its name must be a DNS label".to_owned());
        }
        let unread = |error: serde_json::Error| format!("its arguments cannot be read: {error}");
        match self.kind.as_str() {
            RUN_ON_NODE => {
                let task = RunOnNode::deserialize(&self.arguments).map_err(unread)?;
                task.check().map(|()| Task::RunOnNode(task))
            }
            CHECK_POD => {
                let task = CheckPod::deserialize(&self.arguments).map_err(unread)?;
                task.check().map(|()| Task::CheckPod(Box::new(task)))
            }
            COLLECT_LOGS => {
                NoArguments::deserialize(&self.arguments).map(|NoArguments {}| Task::CollectLogs).map_err(unread)
            }
            COPY_IMAGE if self.arguments.as_object().is_some_and(serde_json::Map::is_empty) => Ok(Task::ExportImage),
            COPY_IMAGE if self.arguments.get("secrets").is_some() => {
                Err("a plugin names no `secrets`: the host takes those of an OpsJob from its status".to_owned())
            }
            COPY_IMAGE => {
                let task = CopyImage::deserialize(&self.arguments).map_err(unread)?;
                task.check().map(|()| Task::CopyImage(task))
            }
            _ => Err(format!("this host offers the kinds {RUN_ON_NODE}, {CHECK_POD}, {COLLECT_LOGS} and {COPY_IMAGE}")),
        }
    }
}

fn check_seconds(seconds: u32) -> Result<(), String> {
    if (1..=LONGEST_SECONDS).contains(&seconds) {
        return Ok(());
    }
    Err(format!("`timeoutSeconds: {seconds}` is not between 1 and {LONGEST_SECONDS}"))
}

fn check_script(source: ScriptSource<'_>) -> Result<(), String> {
    let ScriptSource::Text(text) = source else { return Ok(()) };
    if text.len() <= MAX_SCRIPT_BYTES && !text.contains('\0') {
        return Ok(());
    }
    Err(format!("the script has {} bytes; at most {MAX_SCRIPT_BYTES} are taken, and no NUL", text.len()))
}

impl CopyImage {
    fn check(&self) -> Result<(), String> {
        if !is_repository(self.repository()) || self.reference().is_empty() {
            return Err(format!("`source` {:?} is no `REGISTRY/NAME@DIGEST` and no `REGISTRY/NAME:TAG`", self.source));
        }
        check_target(&self.target)?;
        if !self.target.starts_with(PLUGIN_COPIES) {
            return Err(format!("`target` {:?} is not below {PLUGIN_COPIES}", self.target));
        }
        if !self.runs.as_deref().is_none_or(is_digest) {
            return Err("`runs` is no digest `sha256:...`".to_owned());
        }
        match is_tag(&self.otherwise) {
            true => Ok(()),
            false => Err(format!("`otherwise` {:?} is no tag", self.otherwise)),
        }
    }

    /// Returns the registry and the name of the image, without digest and tag.
    pub fn repository(&self) -> &str {
        repository_of(&self.source)
    }

    /// Returns the digest or tag of the image.
    fn reference(&self) -> &str {
        let (_, reference) = split(&self.source);
        reference
    }
}

/// Returns the registry and the name of an image, without digest and tag.
pub fn repository_of(source: &str) -> &str {
    let (name, _) = split(source);
    name
}

/// Returns the name of an image with its registry, and its digest or tag.
fn split(source: &str) -> (&str, &str) {
    let by_tag = || {
        // A colon before the last slash belongs to a port.
        let place = source.rfind('/').unwrap_or(0);
        let (_, last) = source.split_at(place);
        let (name, tag) = last.rsplit_once(':').unwrap_or((last, ""));
        (source.get(..place.saturating_add(name.len())).unwrap_or_default(), tag)
    };
    source.split_once('@').unwrap_or_else(by_tag)
}

/// Checks the name of an image in the registry that the host exports to.
fn check_target(target: &str) -> Result<(), String> {
    match target.rsplit_once(':').is_some_and(|(name, tag)| is_in_registry(name) && is_tag(tag)) {
        true => Ok(()),
        false => Err(format!("`target` {target:?} is no NAME:TAG")),
    }
}

/// Returns true for `host[:port]/name`, if `name` is a valid name in a registry.
pub(crate) fn is_repository(text: &str) -> bool {
    text.split_once('/').is_some_and(|(registry, name)| is_registry(registry) && is_in_registry(name))
}

/// Returns true for `sha256:` and 64 lower-case digits. The host copies only images with this kind of digest.
pub fn is_digest(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_digit))
}

/// Returns true for `host[:port]`.
pub fn is_registry(text: &str) -> bool {
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "443"));
    let is_name = !host.is_empty() && host.len() <= 253 && host.bytes().all(is_host);
    is_name && port.parse::<u16>().is_ok()
}

/// Returns true for the name of an image in a registry.
pub(crate) fn is_in_registry(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-');
    let is_part = |part: &str| {
        part.bytes().all(is_plain)
            && part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && !part.contains("..")
    };
    name.len() <= MAX_NAME && name.split('/').all(is_part)
}

fn is_tag(tag: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=128).contains(&tag.len()) && tag.bytes().all(is_plain) && !tag.starts_with(['.', '-'])
}

impl RunOnNode {
    fn check(&self) -> Result<(), String> {
        check_seconds(self.timeout_seconds)?;
        match (&self.builtin, &self.script) {
            (Some(_), None) => {}
            (None, Some(script)) => {
                let Some(source) = script.source() else {
                    return Err("give its `script` either `text` or `sha256`".to_owned());
                };
                check_script(source)?;
                if !script.interpreter.starts_with('/') || !is_plain(&script.interpreter) {
                    return Err(format!("the interpreter {:?} is not an absolute path", script.interpreter));
                }
            }
            _ => return Err("give it either `builtin` or `script`".to_owned()),
        }
        match (&self.commit, self.builtin == Some(Builtin::Commit)) {
            (None, false) => {}
            (Some(commit), true) => {
                if !is_dns_label(&commit.container) {
                    return Err(format!("`container` {:?} is no name of a container", commit.container));
                }
                check_target(&commit.target)?;
            }
            _ => return Err(format!("`commit` belongs to the builtin {COMMIT}, and that one needs it")),
        }
        let is_id =
            |id: &str| !id.is_empty() && id.len() <= 64 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        match self.expect_boot_id.as_deref().filter(|id| !is_id(id)) {
            Some(id) => Err(format!("`expectBootId` {id:?} is no boot id")),
            None => Ok(()),
        }
    }
}

impl CheckPod {
    fn check(&self) -> Result<(), String> {
        check_seconds(self.timeout_seconds)?;
        if self.image.is_empty() || !is_plain(&self.image) {
            return Err("it names no `image`".to_owned());
        }
        if self.script.is_some() && !self.command.is_empty() {
            return Err("give it either `script` or `command`".to_owned());
        }
        self.script.as_ref().map_or(Ok(()), |script| check_script(script.source()))?;
        if let Some(name) = self.env.keys().find(|name| !is_variable(name)) {
            return Err(format!("`env` {name:?} is no name of a variable: printable ASCII without `=`"));
        }
        for (resource, amount) in &self.resources {
            if !is_qualified_name(resource) {
                return Err(format!("`resources` {resource:?} is no name of a resource"));
            }
            if !is_quantity(amount) {
                return Err(format!("`resources` {resource}: {amount:?} is no quantity such as `500m` or `256Mi`"));
            }
        }
        if let Some(size) = self.shared_memory.as_deref().filter(|size| !is_quantity(size)) {
            return Err(format!("`sharedMemory` {size:?} is no quantity such as `256Mi`"));
        }
        if let Some(one) = self.capabilities.iter().find(|one| !CAPABILITIES.contains(&one.as_str())) {
            return Err(format!("no check may have the capability {one:?}"));
        }
        self.check_host_paths()
    }

    fn check_host_paths(&self) -> Result<(), String> {
        let mut known = BTreeSet::new();
        for path in &self.host_paths {
            if !may_be_seen(path) {
                return Err(format!("no check may see {path:?} of the node"));
            }
            if self.script.is_some() && is_in(TASK_DIRECTORY, path) {
                return Err(format!("`hostPaths` {path:?} lies where its script is, in {TASK_DIRECTORY}"));
            }
            if !known.insert(path) {
                return Err(format!("`hostPaths` has {path:?} twice"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(kind: &str, arguments: Value) -> Result<Task, String> {
        TaskRequest { name: "t".into(), kind: kind.into(), arguments }.task()
    }

    #[test]
    fn a_script_runs_in_a_shell_for_ten_minutes_unless_it_says_otherwise() {
        let Ok(Task::RunOnNode(task)) = asked(RUN_ON_NODE, json!({"script": {"text": "true"}})) else { panic!() };
        let (interpreter, origin) = ("/bin/sh".into(), ScriptOrigin::Template);
        let script = Script { text: Some("true".into()), sha256: None, origin, interpreter };
        assert_eq!((task.script, task.timeout_seconds, task.expect_boot_id), (Some(script), 600, None));
        let reboot = json!({"builtin": "reboot", "timeoutSeconds": 60, "expectBootId": "0a-1f"});
        assert!(matches!(asked(RUN_ON_NODE, reboot), Ok(Task::RunOnNode(RunOnNode { builtin: Some(_), .. }))));
    }

    #[test]
    fn what_no_host_carries_out_is_refused_in_words() {
        let script = json!({"text": "true"});
        for (kind, arguments, word) in [
            ("format-disk", json!({}), "run-on-node, check-pod, collect-logs and copy-image"),
            (COLLECT_LOGS, json!({"follow": true}), "cannot be read"),
            (RUN_ON_NODE, json!({}), "either `builtin` or `script`"),
            (RUN_ON_NODE, json!({"builtin": "reboot", "script": script}), "either `builtin` or `script`"),
            (RUN_ON_NODE, json!({"script": {}}), "either `text` or `sha256`"),
            (RUN_ON_NODE, json!({"script": {"text": "true", "sha256": "a".repeat(64)}}), "either `text` or `sha256`"),
            (RUN_ON_NODE, json!({"script": {"sha256": "A".repeat(64)}}), "64 hexadecimal digits"),
            (CHECK_POD, json!({"image": "i", "script": 7}), "text, or an object with its `sha256`"),
            (
                CHECK_POD,
                json!({"image": "i", "script": {"sha256": "../other"}}),
                "text, or an object with its `sha256`",
            ),
            (RUN_ON_NODE, json!({"builtin": "format"}), "cannot be read"),
            (RUN_ON_NODE, json!({"script": script, "privileged": true}), "cannot be read"),
            (RUN_ON_NODE, json!({"script": script, "timeoutSeconds": 3601}), "3601"),
            (RUN_ON_NODE, json!({"script": {"text": "true", "interpreter": "sh"}}), "absolute path"),
            (RUN_ON_NODE, json!({"script": {"text": "x".repeat(65_537)}}), "65537 bytes"),
            (RUN_ON_NODE, json!({"builtin": "reboot", "expectBootId": "$(id)"}), "no boot id"),
            (CHECK_POD, json!({"image": ""}), "no `image`"),
            (CHECK_POD, json!({"image": "i", "script": "true", "command": ["a"]}), "either `script` or `command`"),
            (CHECK_POD, json!({"image": "i", "env": {"": "x"}}), "`env` \"\""),
            (CHECK_POD, json!({"image": "i", "env": {"A=B": "x"}}), "`env` \"A=B\""),
            (CHECK_POD, json!({"image": "i", "resources": {"cpu": "much"}}), "`resources` cpu: \"much\""),
            (CHECK_POD, json!({"image": "i", "resources": {"a b": "1"}}), "`resources` \"a b\""),
            (CHECK_POD, json!({"image": "i", "sharedMemory": "1 GB"}), "`sharedMemory` \"1 GB\""),
            (CHECK_POD, json!({"image": "i", "capabilities": ["SYS_ADMIN"]}), "the capability \"SYS_ADMIN\""),
            (CHECK_POD, json!({"image": "i", "hostPaths": ["/a", "/b", "/a"]}), "`hostPaths` has \"/a\" twice"),
            (
                CHECK_POD,
                json!({"image": "i", "script": "true", "hostPaths": ["/task/x"]}),
                "\"/task/x\" lies where its script is",
            ),
        ] {
            let refused = asked(kind, arguments.clone()).unwrap_err();
            assert!(refused.contains(word), "{arguments}: {refused}");
        }
        let named = TaskRequest { name: "A b".into(), kind: RUN_ON_NODE.into(), arguments: json!({"script": script}) };
        assert!(named.task().unwrap_err().contains("DNS label"));
    }

    #[test]
    fn a_copy_says_what_is_copied_and_under_which_name() {
        let copy = |source: &str, target: &str| {
            asked(COPY_IMAGE, json!({"source": source, "target": target, "otherwise": "20260101-000000"}))
        };
        let digest = format!("docker.io/library/busybox@sha256:{}", "a".repeat(64));
        for (source, repository) in [
            (digest.as_str(), "docker.io/library/busybox"),
            ("reg:5000/a/b:1.0", "reg:5000/a/b"),
            ("127.0.0.1:5000/a:latest", "127.0.0.1:5000/a"),
        ] {
            let Ok(Task::CopyImage(copied)) = copy(source, "custom/plugins/mine/d/busybox:20260101") else {
                panic!("{source}")
            };
            assert_eq!(copied.repository(), repository);
        }
        for source in
            ["busybox", "busybox:1", "reg:5000/a", "reg/A:1", "reg/a b:1", "reg/../a:1", "reg/a@", "http://reg/a:1"]
        {
            assert!(copy(source, "custom/plugins/a:1").unwrap_err().contains("`source`"), "{source}");
        }
        for target in [
            "custom/plugins/a",
            "Custom/a:1",
            "../a:1",
            "custom/plugins/a:.x",
            "custom/plugins//a:1",
            "custom/a:1",
            "custom/library/busybox:20260101",
            "custom/commits/d/a:1",
        ] {
            assert!(copy("reg/a:1", target).unwrap_err().contains("`target`"), "{target}");
        }
        assert_eq!(asked(COPY_IMAGE, json!({})), Ok(Task::ExportImage), "the OpsJob says all of it");
    }

    #[test]
    fn a_copy_that_a_plugin_asks_for_uses_no_secret() {
        for secrets in [json!(["pull"]), json!([])] {
            let copy =
                json!({"source": "reg/a:1", "target": "custom/plugins/p/d/a:1", "otherwise": "2", "secrets": secrets});
            assert!(asked(COPY_IMAGE, copy).unwrap_err().contains("no `secrets`"), "{secrets}");
        }
    }

    #[test]
    fn a_check_that_asks_for_what_no_check_may_see_is_refused() {
        let sees = |path: &str| asked(CHECK_POD, json!({"image": "i", "hostPaths": [path]}));
        assert!(sees("/opt/tools").is_ok());
        assert!(sees("/var/lib").unwrap_err().contains("no check may see \"/var/lib\""));
    }
}
