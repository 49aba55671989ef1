//! The OperationJob that does the work of an OpsJob. Source: docs/opsjob.md 7.

use serde_json::{Map, Value, json};

use crate::child::build::{OPERATION, WITHHELD};
use crate::cluster::object::{Kind, ObjectKey};
use crate::ops_job::addon::AddonStep;
use crate::ops_job::spec::{OpsSpec, OpsType};
use crate::ops_job::view::OpsJobView;
use crate::shared::quota_key::QUOTA_KEY;

/// The API version of OpsJobs, and their kind.
pub const API_VERSION: &str = "oarlock.dev/v1alpha1";
/// The kind of OpsJobs.
pub const OPS_KIND: &str = "OpsJob";

/// The kind OpsJob.
pub fn ops_kind() -> Kind {
    Kind::new(API_VERSION, OPS_KIND)
}

/// The OpsJob of this name.
pub fn ops_key(name: &str) -> ObjectKey {
    ObjectKey { kind: ops_kind(), namespace: None, name: name.to_owned() }
}

/// The child of a job: its OperationJob. An addon runs these steps; an export has these parameters.
pub fn child_of(job: &OpsJobView, spec: &OpsSpec, steps: &[AddonStep], of_export: Map<String, Value>) -> Value {
    let targets = job.targets.iter().flat_map(|resolved| &resolved.targets);
    let targets: Vec<Value> = targets.map(|(name, uid)| json!({"name": name, "uid": uid})).collect();
    let tolerated = spec.tolerated(targets.len());
    let goes_on = matches!(spec.kind, OpsType::Preflight | OpsType::Dumplog);
    let policy = if goes_on { "Continue" } else { "FailFast" };
    let target_kind = if spec.kind.is_for_nodes() { "Node" } else { "Pod" };
    let owner = json!({"apiVersion": API_VERSION, "kind": OPS_KIND, "name": job.name, "uid": job.uid,
        "controller": true, "blockOwnerDeletion": true});
    let mut fields = Map::from_iter([
        ("action".to_owned(), json!(spec.kind.word())),
        ("targetKind".to_owned(), json!(target_kind)),
        ("targets".to_owned(), json!(targets)),
        ("failurePolicy".to_owned(), json!({"type": policy, "maxFailures": tolerated})),
        ("activeDeadlineSeconds".to_owned(), json!(spec.kind.deadline())),
        // It starts nothing before it was seen that nobody has stopped the job meanwhile.
        ("paused".to_owned(), json!(true)),
        ("TTLSecondsAfterFinished".to_owned(), json!(WITHHELD)),
    ]);
    fields.extend(spec.batch.map(|batch| ("parallelism".to_owned(), json!(batch))));
    let mut parameters = spec.parameters.clone();
    if !steps.is_empty() {
        parameters.insert("steps".to_owned(), steps.iter().map(AddonStep::parameter).collect());
    }
    parameters.extend(of_export);
    if !parameters.is_empty() {
        fields.insert("parameters".to_owned(), Value::Object(parameters));
    }
    let (api_version, kind) = OPERATION;
    json!({"apiVersion": api_version, "kind": kind,
        "metadata": {"name": job.name, "namespace": job.child_namespace(), "ownerReferences": [owner],
            "annotations": {QUOTA_KEY: job.owner().text()}}, "spec": fields})
}
