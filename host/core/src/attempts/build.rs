//! Builds a child on raw JSON: a Job from a JobSpec, or an OperationJob. Source: docs/jobflow.md 2.1, 2.2, 2.7.

use serde_json::{Map, Value, json};

use crate::attempts::globals::{Globals, share_volumes};
use crate::attempts::merge::merge;
use crate::attempts::parent::Parent;
use crate::object::canonical::{RevisionsAround, revision};
use crate::object::fields::{flag, list, number, object_at};
use crate::object::memory::text_len;
use crate::operation_job::spec::DEFAULT_TTL;

/// The annotation of a Job that the host made from a JobTemplate: `<namespace>.<template>`.
pub const BY_TEMPLATE: &str = "createByJobTemplate";
/// The annotation with the `ttlSecondsAfterFinished` that the host withholds until the outcome is recorded.
pub const TTL: &str = "oarlock.dev/ttl";
/// The label with the kind of the owner.
pub const OWNER_KIND: &str = "oarlock.dev/owner-kind";
/// The label with the UID of the owner.
pub const OWNER_UID: &str = "oarlock.dev/owner-uid";
/// The label with the number of the attempt, from 0.
pub const ATTEMPT: &str = "oarlock.dev/attempt";
/// The annotation with the step's name.
pub const STEP: &str = "oarlock.dev/step";
/// The annotation with the node's name.
pub const NODE: &str = "oarlock.dev/node";
/// The annotation with UID and generation of the JobTemplate that the child was built from: `<uid>/<generation>`.
pub const TEMPLATE: &str = "oarlock.dev/template";
/// The annotation with the digest of the child's inputs.
pub const REVISION: &str = "oarlock.dev/revision";
/// The prefix of the labels and annotations that belong to the host.
const OWN_KEYS: &str = "oarlock.dev/";
/// The prefix of the labels that the host copies to children. One of them is the queue of a Job.
pub(crate) const QUEUE_LABELS: &str = "kueue.x-k8s.io/";

/// The field of a Job with its time to live.
pub const JOB_TTL: &str = "ttlSecondsAfterFinished";
/// The field of a Job with the number of retries of each index.
const PER_INDEX: &str = "backoffLimitPerIndex";
/// The field of an OperationJob with its time to live.
pub const OPERATION_TTL: &str = "TTLSecondsAfterFinished";
/// The time to live of an OperationJob while the host withholds the real one. Without a value, the OperationJob would get the default at once.
pub const WITHHELD: i64 = i32::MAX as i64;

/// The inputs of a Job.
#[derive(Clone, Copy, Debug)]
pub struct JobParts<'a> {
    /// The JobSpec.
    pub base: &'a Value,
    /// The JobTemplate that the JobSpec is from: its name and its version.
    pub template: Option<(&'a str, &'a str)>,
    /// The `overrides` of the step.
    pub overrides: Option<&'a Value>,
    /// Shared volumes of the flow.
    pub volumes: &'a [Value],
    /// Mounts of the step.
    pub mounts: &'a [Value],
    /// The `globalParams` of the owner.
    pub globals: Globals<'a>,
    /// The `retryPolicy.podBackoffLimit` of the unit.
    pub backoff_limit: Option<i64>,
    /// The time limit of each attempt, in seconds.
    pub timeout: Option<i64>,
    /// True if the pod tolerates every taint.
    pub tolerates_all: bool,
}

/// A child without its name. The name follows from the attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// True if the child is an OperationJob.
    pub operation: bool,
    /// Labels and annotations of the child.
    pub metadata: Value,
    /// The spec of the child.
    pub spec: Value,
    /// The digest of the child's inputs.
    pub revision: String,
}

/// The reason why the host cannot make a child for a unit, for the condition `Blocked`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The `CamelCase` reason for programs.
    pub reason: String,
    /// The sentence for people.
    pub message: String,
}

impl Cause {
    /// Returns a cause with this reason and sentence.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }
}

/// Builds a Job.
///
/// # Errors
/// If a shared volume differs from a volume of the template with the same name.
/// If the Job is too large, or sets `manualSelector`.
pub fn build_job(parent: &Parent, parts: JobParts<'_>) -> Result<Built, Cause> {
    draft_job(parent, parts).map(|draft| draft.finish(parent, false))
}

/// The inputs of a child's revision, and the version of the JobTemplate. The version is not part of the revision: an edit that is undone makes a
/// new version, but not a new revision.
struct ChildDraft {
    metadata: Value,
    spec: Value,
    ttl: Option<Value>,
    version: Option<String>,
}

/// The longest JSON text of a Job's inputs. Many steps and nodes may share one text.
const MOST_TEXT: usize = 128 * 1024;

/// Refuses a JobSpec that is too large.
///
/// # Errors
/// If the JobSpec is too large. The message has the size.
pub fn refuse_large(job: &Value) -> Result<(), Cause> {
    refuse_text(text_len(job))
}

/// Returns the length of the text that these parts make. Each container gets the mounts and the global parameters.
fn built_text(parts: &JobParts<'_>) -> usize {
    let length = |values: &[Value]| values.iter().map(text_len).fold(0, usize::saturating_add);
    let containers = |job: &Value| {
        let of = |field: &str| list(job, &format!("/template/spec/{field}")).len();
        of("containers").saturating_add(of("initContainers"))
    };
    let own = [parts.base].into_iter().chain(parts.overrides);
    let (text, copies) = own.fold((0_usize, 0_usize), |(text, copies), job| {
        (text.saturating_add(text_len(job)), copies.saturating_add(containers(job)))
    });
    let copied = length(parts.mounts).saturating_add(parts.globals.text_len());
    text.saturating_add(length(parts.volumes)).saturating_add(copied.saturating_mul(copies.saturating_add(1)))
}

fn refuse_text(text: usize) -> Result<(), Cause> {
    if text <= MOST_TEXT {
        return Ok(());
    }
    let (has, most) = (text.div_ceil(1_024), MOST_TEXT / 1_024);
    let message =
        format!("its Job takes {has} KiB, and at most {most} KiB are allowed: move scripts and data to a ConfigMap");
    Err(Cause::new("TooLarge", message))
}

fn draft_job(parent: &Parent, parts: JobParts<'_>) -> Result<ChildDraft, Cause> {
    refuse_text(built_text(&parts))?;
    let mut spec = without_nulls(parts.base);
    if let Some(overrides) = parts.overrides {
        merge(&mut spec, overrides);
    }
    if flag(&spec, "/manualSelector") {
        let message = "manualSelector must not be true, because Jobs would count each other's pods: take it out";
        return Err(Cause::new("Rejected", message));
    }
    let template = object_at(&mut spec, &[]).entry("template").or_insert_with(|| json!({}));
    share_volumes(template, parts.volumes, parts.mounts, parts.globals.with_init_containers())
        .map_err(|message| Cause::new("VolumeConflict", message))?;
    parts.globals.render(template);
    let pod = object_at(template, &["spec"]);
    pod.insert("restartPolicy".to_owned(), "Never".into());
    if parts.tolerates_all {
        pod.insert("tolerations".to_owned(), json!([{"operator": "Exists"}]));
    }
    let deadline = [number(&spec, "/activeDeadlineSeconds"), parts.timeout].into_iter().flatten().min();
    let fields = object_at(&mut spec, &[]);
    // A limit for each index is meant to work without a limit for the whole Job, which would be reached first.
    if parts.backoff_limit.is_some() || !fields.contains_key(PER_INDEX) {
        fields.insert("backoffLimit".to_owned(), parts.backoff_limit.unwrap_or(0).into());
    }
    if let Some(deadline) = deadline {
        fields.insert("activeDeadlineSeconds".to_owned(), deadline.into());
    }
    let ttl = withheld(fields, JOB_TTL);
    let mut metadata = metadata(&parts.globals);
    if let Some((template, _)) = parts.template {
        let value = format!("{}.{template}", parent.namespace);
        object_at(&mut metadata, &["annotations"]).insert(BY_TEMPLATE.to_owned(), value.into());
    }
    let version = parts.template.map(|(_, version)| version.to_owned());
    Ok(ChildDraft { metadata, spec, ttl, version })
}

/// The Jobs of a DaemonJob, which differ only in their node. The shared parts are built once.
#[derive(Debug)]
pub struct NodeJobs {
    built: Built,
    revisions: RevisionsAround,
}

impl NodeJobs {
    /// Builds the parts that the Jobs share.
    ///
    /// # Errors
    /// If [`build_job`] fails, or if the pod cannot be put on a node.
    pub fn build(parent: &Parent, parts: JobParts<'_>) -> Result<Self, Cause> {
        let draft = draft_job(parent, JobParts { globals: parts.globals.on_node("node"), ..parts })?;
        let revisions = RevisionsAround::new(&draft.value(), &format!("/spec{NODE_NAME}"));
        let revisions = revisions.ok_or_else(|| Cause::new("Rejected", "its pod cannot be put on a node"))?;
        Ok(Self { built: draft.finish(parent, false), revisions })
    }

    /// Returns the revision of a node's Job.
    pub fn revision(&self, node: &str) -> String {
        self.revisions.with(node)
    }

    /// Returns the Job of a node.
    pub fn of(&self, node: &str) -> Built {
        let mut built = Built { revision: self.revision(node), ..self.built.clone() };
        built.spec.pointer_mut(NODE_NAME).into_iter().for_each(|name| *name = node.into());
        built
    }
}

/// The node of a Job's pod, as a path in the Job's spec.
const NODE_NAME: &str = "/template/spec/nodeName";

/// Builds an OperationJob.
pub fn build_operation(parent: &Parent, operation: &Value, globals: &Globals<'_>, targets_left: &[String]) -> Built {
    let mut spec = operation.clone();
    let fields = object_at(&mut spec, &[]);
    let is_absent = fields.get(OPERATION_TTL).is_none_or(Value::is_null);
    let own = withheld(fields, OPERATION_TTL);
    let draft = |spec: &Value, ttl: Option<Value>| ChildDraft {
        metadata: metadata(globals),
        spec: spec.clone(),
        ttl,
        version: None,
    };
    // The targets that a retry leaves out do not change the revision.
    let revision = draft(&spec, own.clone()).revision();
    let ttl = own.or_else(|| is_absent.then(|| DEFAULT_TTL.into()));
    if ttl.is_some() {
        object_at(&mut spec, &[]).insert(OPERATION_TTL.to_owned(), WITHHELD.into());
    }
    if !targets_left.is_empty() {
        let left: Vec<Value> = list(&spec, "/targets")
            .iter()
            .filter(|target| {
                target
                    .get("name")
                    .and_then(Value::as_str)
                    .is_some_and(|name| targets_left.iter().any(|left| left == name))
            })
            .cloned()
            .collect();
        let fields = object_at(&mut spec, &[]);
        if !left.is_empty() {
            fields.insert("targets".to_owned(), Value::Array(left));
        }
    }
    Built { revision, ..draft(&spec, ttl).finish(parent, true) }
}

fn metadata(globals: &Globals<'_>) -> Value {
    // The host reads these keys from a child, so only the host may set them.
    let is_own = |key: &str| key.starts_with(OWN_KEYS) || key == BY_TEMPLATE;
    let copy = |field| {
        let given = globals.map(field).cloned().unwrap_or_default();
        Value::Object(given.into_iter().filter(|(key, _)| !is_own(key)).collect())
    };
    json!({"labels": copy("labels"), "annotations": copy("annotations")})
}

/// Removes the time to live from the spec and returns it. An invalid value stays, so that the API server's refusal of the create names it.
fn withheld(spec: &mut Map<String, Value>, field: &str) -> Option<Value> {
    let least = if field == JOB_TTL { 0 } else { 1 };
    let is_one = |ttl: &Value| ttl.as_i64().is_some_and(|ttl| (least..=i64::from(i32::MAX)).contains(&ttl));
    let ttl = spec.get(field).filter(|ttl| is_one(ttl)).cloned()?;
    spec.shift_remove(field);
    Some(ttl)
}

impl ChildDraft {
    fn value(&self) -> Value {
        json!({"metadata": self.metadata, "spec": self.spec, "ttl": self.ttl})
    }

    fn revision(&self) -> String {
        revision(&self.value())
    }

    /// Adds the parts that do not count for the revision.
    fn finish(self, parent: &Parent, operation: bool) -> Built {
        let revision = self.revision();
        let Self { mut metadata, spec, ttl, version } = self;
        let labels = object_at(&mut metadata, &["labels"]);
        for (key, value) in &parent.labels {
            labels.entry(key.clone()).or_insert_with(|| value.as_str().into());
        }
        if let Some(version) = version {
            object_at(&mut metadata, &["annotations"]).insert(TEMPLATE.to_owned(), version.into());
        }
        if let Some(ttl) = ttl {
            let text = ttl.as_i64().map_or_else(|| ttl.to_string(), |seconds| seconds.to_string());
            object_at(&mut metadata, &["annotations"]).insert(TTL.to_owned(), text.into());
        }
        Built { operation, metadata, spec, revision }
    }
}

/// The names and the attempt number of a child.
#[derive(Clone, Copy, Debug)]
pub struct ChildPlace<'a> {
    /// Name of the child.
    pub name: &'a str,
    /// Name of the unit.
    pub unit: &'a str,
    /// Number of the attempt, from 0.
    pub attempt: u32,
}

impl Built {
    /// Returns the object to create.
    pub fn object(&self, parent: &Parent, place: ChildPlace<'_>) -> Value {
        let mut metadata = self.metadata.clone();
        let labels = object_at(&mut metadata, &["labels"]);
        labels.insert(OWNER_KIND.to_owned(), parent.kind.name().into());
        labels.insert(OWNER_UID.to_owned(), parent.uid.as_str().into());
        labels.insert(ATTEMPT.to_owned(), place.attempt.to_string().into());
        let annotations = object_at(&mut metadata, &["annotations"]);
        annotations.insert(parent.kind.unit_annotation().to_owned(), place.unit.into());
        annotations.insert(REVISION.to_owned(), self.revision.as_str().into());
        let fields = object_at(&mut metadata, &[]);
        fields.insert("name".to_owned(), place.name.into());
        fields.insert("namespace".to_owned(), parent.namespace.as_str().into());
        fields.insert("ownerReferences".to_owned(), json!([parent.owner_reference()]));
        let (api_version, kind) = if self.operation { OPERATION } else { JOB };
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": self.spec})
    }
}

/// API version and kind of a Job.
pub const JOB: (&str, &str) = ("batch/v1", "Job");
/// API version and kind of an OperationJob.
pub const OPERATION: (&str, &str) = ("apps.kusionstack.io/v1alpha1", "OperationJob");

/// Returns the value without its `null` fields. A `null` in an object counts as absent.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), without_nulls(v))).collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        plain => plain.clone(),
    }
}

/// Returns true if a JobSpec has a container.
pub fn has_containers(spec: &Value) -> bool {
    !list(spec, "/template/spec/containers").is_empty()
}
