//! The OperationJob that does the work of an OpsJob. Source: docs/opsjob.md 7.

use serde_json::{Map, Value, json};

use crate::attempts::build::{OPERATION, WITHHELD};
use crate::object::quota_key::QUOTA_KEY;
use crate::ops_job::addon::AddonStep;
use crate::ops_job::names::{API_VERSION, OPS_KIND};
use crate::ops_job::spec::{OpsSpec, OpsType};
use crate::ops_job::view::OpsJobView;

/// Returns the OperationJob of a job. `steps` are the scripts of an addon, and `of_export` the parameters of an export.
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
        // The OperationJob starts nothing until the host has seen that nobody stopped the job meanwhile.
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
