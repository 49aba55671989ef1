//! Writes `schemas/builtin.json`: the unchanged schemas of the built-in kinds and of every schema they refer to, one per line.
//! FOLDER contains the OpenAPI v3 documents of a Kubernetes release: `api/openapi-spec/v3` of the module `k8s.io/kubernetes`.
//!
//! `cargo run -p oarlock-sim --example schemas -- FOLDER > host/sim/schemas/builtin.json`

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

/// The documents that define the kinds which the in-memory API serves.
const DOCUMENTS: [&str; 12] = [
    "api__v1",
    "apis__apps__v1",
    "apis__batch__v1",
    "apis__policy__v1",
    "apis__networking.k8s.io__v1",
    "apis__coordination.k8s.io__v1",
    "apis__events.k8s.io__v1",
    "apis__authentication.k8s.io__v1",
    "apis__authorization.k8s.io__v1",
    "apis__rbac.authorization.k8s.io__v1",
    "apis__apiextensions.k8s.io__v1",
    "apis__admissionregistration.k8s.io__v1",
];

/// The definitions of the kinds which the in-memory API serves.
const KINDS: [&str; 38] = [
    "io.k8s.api.core.v1.Pod",
    "io.k8s.api.core.v1.Node",
    "io.k8s.api.core.v1.Namespace",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.Secret",
    "io.k8s.api.core.v1.ServiceAccount",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.core.v1.Event",
    "io.k8s.api.core.v1.LimitRange",
    "io.k8s.api.core.v1.ResourceQuota",
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.apps.v1.ReplicaSet",
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.apps.v1.DaemonSet",
    "io.k8s.api.apps.v1.ControllerRevision",
    "io.k8s.api.autoscaling.v1.Scale",
    "io.k8s.api.batch.v1.Job",
    "io.k8s.api.batch.v1.CronJob",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
    "io.k8s.api.policy.v1.Eviction",
    "io.k8s.api.networking.v1.NetworkPolicy",
    "io.k8s.api.coordination.v1.Lease",
    "io.k8s.api.events.v1.Event",
    "io.k8s.api.rbac.v1.Role",
    "io.k8s.api.rbac.v1.RoleBinding",
    "io.k8s.api.rbac.v1.ClusterRole",
    "io.k8s.api.rbac.v1.ClusterRoleBinding",
    "io.k8s.api.authentication.v1.SelfSubjectReview",
    "io.k8s.api.authentication.v1.TokenRequest",
    "io.k8s.api.authentication.v1.TokenReview",
    "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
    "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
    "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
    "io.k8s.api.authorization.v1.SubjectAccessReview",
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy",
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBinding",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("give the folder of the OpenAPI v3 documents")?;
    let mut known = BTreeMap::new();
    for document in DOCUMENTS {
        let path = Path::new(&folder).join(format!("{document}_openapi.json"));
        let mut value: Value = serde_json::from_slice(&std::fs::read(path)?)?;
        let schemas = value.pointer_mut("/components/schemas").map(Value::take);
        known.extend(schemas.as_ref().and_then(Value::as_object).cloned().unwrap_or_default());
    }
    let mut wanted = BTreeMap::new();
    for kind in KINDS {
        collect(kind, &known, &mut wanted);
    }
    let lines = wanted.iter().map(|(name, schema)| format!("{name:?}: {schema}")).collect::<Vec<_>>();
    println!("{{\n{}\n}}", lines.join(",\n"));
    Ok(())
}

fn collect(name: &str, known: &BTreeMap<String, Value>, wanted: &mut BTreeMap<String, Value>) {
    let Some(schema) = known.get(name).filter(|_| !wanted.contains_key(name)) else { return };
    wanted.insert(name.to_owned(), schema.clone());
    references(schema, &mut |name| collect(name, known, wanted));
}

fn references(value: &Value, found: &mut dyn FnMut(&str)) {
    match value {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str) {
                found(name.rsplit('/').next().unwrap_or_default());
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}
