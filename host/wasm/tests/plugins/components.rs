//! Grants for the built components, and a small set of objects that the components can read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::visit::{Answer, Call, JobFacts, ReadRefusal, Reads, TargetFacts, Trap, Visit};
use oarlock_wasm::{Options, Plugins, annotate, inspect};
use serde_json::{Value, json};

/// Returns the bytes of a built component.
pub(crate) fn component(name: &str) -> Vec<u8> {
    crate::folder::component(name).unwrap()
}

/// The time of the rounds in these tests.
pub(crate) const NOW_MS: u64 = 1_800_000_000_123;

/// Returns the manifest in a component, as JSON.
pub(crate) fn manifest(bytes: &[u8]) -> Value {
    serde_json::to_value(inspect(bytes).unwrap().manifest.unwrap()).unwrap()
}

/// Returns the component with an edited manifest.
pub(crate) fn with_manifest(bytes: &[u8], edit: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut manifest = manifest(bytes);
    edit(&mut manifest);
    annotate(bytes, manifest.to_string().as_bytes()).unwrap()
}

/// Returns a grant of everything that a component asks for, with this configuration.
pub(crate) fn all_of(bytes: &[u8], config: Option<Value>) -> Grant {
    let manifest = Manifest::parse(manifest(bytes).to_string().as_bytes()).unwrap();
    Grant {
        name: manifest.name,
        any_version: true,
        namespaces: vec!["*".into()],
        reads: manifest.reads,
        writes: manifest.writes,
        tasks: manifest.tasks,
        config,
        ..Grant::default()
    }
}

/// Returns the options of a host whose plugins are published by hand. All tests share its compile cache.
pub(crate) fn options() -> Options {
    let cache_dir = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    Options { cache_dir, ..Options::in_memory() }
}

/// Starts a host that serves this component, with everything granted that the component asks for.
pub(crate) async fn serving(name: &str) -> (Plugins, Arc<PluginInfo>) {
    serving_file(name, component(name), options()).await
}

/// Starts a host with these options that serves this file, with everything granted that the file asks for.
pub(crate) async fn serving_file(name: &str, bytes: Vec<u8>, options: Options) -> (Plugins, Arc<PluginInfo>) {
    let plugins = Plugins::start(options).await.unwrap();
    plugins.set_grants(vec![all_of(&bytes, None)]).await;
    let status = plugins.publish(name, bytes).await.unwrap();
    assert_eq!(status.reason, "Serving", "{status:?}");
    let info = found(&plugins, &status.action.unwrap(), None).unwrap();
    (plugins, info)
}

/// Returns the plugin Replace with this version.
pub(crate) fn version(version: &str) -> Vec<u8> {
    with_manifest(&component("replace"), |manifest| manifest["version"] = json!(version))
}

/// Starts a host that grants Replace everything, and serves nothing yet.
pub(crate) async fn granted() -> Plugins {
    let plugins = Plugins::start(options()).await.unwrap();
    plugins.set_grants(vec![all_of(&component("replace"), None)]).await;
    plugins
}

/// Returns the plugin for a job, or the reason why there is none.
pub(crate) fn found(plugins: &Plugins, action: &str, bound: Option<&str>) -> Result<Arc<PluginInfo>, String> {
    match plugins.find(action, bound) {
        PluginLookup::Serving(info) => Ok(info),
        PluginLookup::NotServing { reason, message } => Err(format!("{reason}: {message}")),
        PluginLookup::Unknown { loaded } => Err(format!("unknown; loaded: {}", loaded.join(", "))),
    }
}

/// The objects that a plugin can read.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) related: BTreeMap<String, Vec<Arc<Object>>>,
    pub(crate) objects: BTreeMap<ObjectKey, Arc<Object>>,
    /// Whether live reads are still missing.
    pub(crate) not_read_live: bool,
}

impl Reads for World {
    fn related(&self, relation: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        if live && self.not_read_live {
            return Err(ReadRefusal::Unavailable);
        }
        let found = self.related.get(relation).cloned();
        found.ok_or_else(|| ReadRefusal::NotDeclared(format!("relation {relation} was not declared by `setup`")))
    }

    fn get(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        if live && self.not_read_live {
            return Err(ReadRefusal::Unavailable);
        }
        Ok(self.objects.get(key).cloned())
    }

    fn serves(&self, kind: &Kind) -> Result<bool, ReadRefusal> {
        Ok(kind.api_version == "v1")
    }
}

/// Returns a pod that a Deployment's ReplicaSet controls.
pub(crate) fn pod(name: &str, labels: Value) -> Arc<Object> {
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "rs-1", "controller": true});
    let document = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "labels": labels, "ownerReferences": [owner], "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]}});
    Arc::new(Object::slim(&document, &Kind::pod(), &["/status/conditions".into()]).unwrap())
}

/// Returns a visit to pod `web` with these parameters.
pub(crate) fn visit(action: &str, call: Call, parameters: Value) -> Visit {
    let job = JobFacts {
        namespace: "shop".into(),
        name: "job".into(),
        uid: "job-1".into(),
        action: action.into(),
        now_ms: NOW_MS,
        parameters,
        target_count: 1,
        cancelled: false,
    };
    let target = TargetFacts {
        name: "web".into(),
        index: 0,
        kind: "Pod".into(),
        uid: Some("uid-web".into()),
        object: Some(pod("web", json!({}))),
        containers: Vec::new(),
        extras: BTreeMap::new(),
        attempt: 1,
        call_try: 1,
        started_ms: NOW_MS - 1000,
        deadline_ms: None,
        tasks: BTreeMap::new(),
    };
    Visit { job: Arc::new(job), target, call, reads: Arc::new(World::default()) }
}

/// Returns the trap in an answer.
pub(crate) fn trap(answer: Answer) -> Trap {
    match answer {
        Answer::Trapped(trap) => trap,
        other => panic!("expected a trap, got {other:?}"),
    }
}
