//! Takes the scene of a visit and yields the same reads that the host offers.
//! May not answer what the manifest does not declare.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;

use super::manifest::Manifest;
use super::relation;
use crate::backend::ReadError;
use crate::parse_instant;
use crate::wit::{Freshness, Level, ObjectRef, Registration, TaskStatus};

/// Everything that can be read during one call.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(super) manifest: Manifest,
    pub(super) registration: Registration,
    pub(super) job: JobFacts,
    pub(super) target: TargetFacts,
    /// What the host watches.
    pub(super) watched: Vec<Value>,
    /// What the API server has.
    pub(super) live: Vec<Value>,
    /// Whether what has to be looked at was looked at.
    pub(super) looked: bool,
    /// Names that other targets hold.
    pub(super) claimed: Vec<String>,
    pub(super) unserved: Vec<String>,
    pub(super) config: Value,
}

/// What is known of the job.
#[derive(Debug, Clone)]
pub(super) struct JobFacts {
    pub(super) uid: String,
    pub(super) now_ms: u64,
    pub(super) parameters: Value,
    pub(super) cancelled: bool,
}

/// What is known of the target.
#[derive(Debug, Clone)]
pub(super) struct TargetFacts {
    pub(super) name: String,
    pub(super) object: Option<Value>,
    pub(super) containers: Vec<String>,
    pub(super) extras: BTreeMap<String, String>,
    pub(super) attempt: u32,
    pub(super) call_try: u32,
    pub(super) started_ms: u64,
    pub(super) deadline_ms: Option<u64>,
    pub(super) tasks: BTreeMap<String, TaskStatus>,
}

thread_local! {
    /// The scene of the call under way: the contract's free functions have no handle to find it by.
    static SCENE: RefCell<Option<Rc<Scene>>> = const { RefCell::new(None) };
}

/// Runs `call` with `scene` as what it can read.
pub(super) fn within<T>(scene: &Rc<Scene>, call: impl FnOnce() -> T) -> T {
    let before = SCENE.replace(Some(Rc::clone(scene)));
    let result = call();
    SCENE.set(before);
    result
}

fn undeclared(what: &str) -> ReadError {
    let message = format!("{what} is not declared: add it to `reads` in the manifest.");
    ReadError { reason: "NotDeclared".to_owned(), message }
}

/// What `pointer` selects, as JSON text.
fn select(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).map(Value::to_string)
}

impl Scene {
    /// What is served at this freshness.
    pub(super) fn objects(&self, freshness: Freshness) -> Result<&[Value], ReadError> {
        match freshness {
            Freshness::Watched => Ok(&self.watched),
            Freshness::Live if self.looked => Ok(&self.live),
            Freshness::Live => Err(ReadError {
                reason: "Unavailable".to_owned(),
                message: "The host looks first, and then repeats the call.".to_owned(),
            }),
        }
    }
}

/// An object in memory.
#[derive(Debug)]
pub(crate) struct Object {
    doc: Value,
    scene: Rc<Scene>,
}

impl Object {
    pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
        path.iter().try_fold(value, |value, key| value.get(key)).and_then(Value::as_str)
    }

    fn part(&self, path: &[&str]) -> Option<String> {
        Self::text(&self.doc, path).map(str::to_owned)
    }

    pub(crate) fn api_version(&self) -> String {
        self.part(&["apiVersion"]).unwrap_or_default()
    }

    pub(crate) fn kind(&self) -> String {
        self.part(&["kind"]).unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> Option<String> {
        self.part(&["metadata", "namespace"])
    }

    pub(crate) fn name(&self) -> String {
        self.part(&["metadata", "name"]).unwrap_or_default()
    }

    pub(crate) fn uid(&self) -> String {
        self.part(&["metadata", "uid"]).unwrap_or_default()
    }

    pub(crate) fn resource_version(&self) -> String {
        self.part(&["metadata", "resourceVersion"]).unwrap_or_default()
    }

    pub(crate) fn label(&self, key: &str) -> Option<String> {
        self.part(&["metadata", "labels", key])
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<String> {
        self.part(&["metadata", "annotations", key])
    }

    pub(crate) fn has_finalizer(&self, name: &str) -> bool {
        let list = self.doc.pointer("/metadata/finalizers").and_then(Value::as_array);
        list.into_iter().flatten().any(|finalizer| finalizer == name)
    }

    pub(crate) fn deletion_time_ms(&self) -> Option<u64> {
        self.part(&["metadata", "deletionTimestamp"]).and_then(|time| parse_instant(&time))
    }

    pub(crate) fn field(&self, pointer: &str) -> Result<Option<String>, ReadError> {
        let (api_version, kind) = (self.api_version(), self.kind());
        if !self.scene.manifest.reads(&api_version, &kind, pointer) {
            return Err(undeclared(&format!("Field {pointer} of {api_version} {kind}")));
        }
        Ok(select(&self.doc, pointer))
    }

    pub(crate) fn json(&self) -> Result<String, ReadError> {
        let mut doc = Value::Null;
        for pointer in self.scene.manifest.visible(&self.api_version(), &self.kind()) {
            if let Some(value) = self.doc.pointer(pointer) {
                let path = pointer.split('/').skip(1);
                let place = path.fold(&mut doc, |place, key| entry(place, key));
                *place = value.clone();
            }
        }
        Ok(doc.to_string())
    }
}

/// The value under a key, made where it is missing.
fn entry<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    if !value.is_object() {
        *value = Value::Object(serde_json::Map::new());
    }
    #[allow(clippy::indexing_slicing, reason = "the value was just made an object, which makes missing keys")]
    &mut value[key]
}

/// The job in memory.
#[derive(Debug)]
pub(crate) struct Job(pub(super) Rc<Scene>);

impl Job {
    pub(crate) fn namespace(&self) -> String {
        relation::NAMESPACE.to_owned()
    }

    pub(crate) fn name(&self) -> String {
        "job".to_owned()
    }

    pub(crate) fn uid(&self) -> String {
        self.0.job.uid.clone()
    }

    pub(crate) fn action(&self) -> String {
        self.0.manifest.action.clone()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.0.job.now_ms
    }

    pub(crate) fn parameter(&self, pointer: &str) -> Option<String> {
        select(&self.0.job.parameters, pointer)
    }

    pub(crate) fn target_count(&self) -> u32 {
        1
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.0.job.cancelled
    }
}

/// The target in memory.
#[derive(Debug)]
pub(crate) struct Target(pub(super) Rc<Scene>);

impl Target {
    pub(crate) fn name(&self) -> String {
        self.0.target.name.clone()
    }

    pub(crate) fn index(&self) -> u32 {
        0
    }

    pub(crate) fn kind(&self) -> String {
        let kind = self.0.target.object.as_ref().and_then(|object| Object::text(object, &["kind"]));
        kind.unwrap_or("Pod").to_owned()
    }

    pub(crate) fn object(&self) -> Option<Object> {
        self.0.target.object.clone().map(|doc| Object { doc, scene: Rc::clone(&self.0) })
    }

    pub(crate) fn containers(&self) -> Vec<String> {
        self.0.target.containers.clone()
    }

    pub(crate) fn extra(&self, key: &str) -> Option<String> {
        self.0.target.extras.get(key).cloned()
    }

    pub(crate) fn extras(&self) -> Vec<(String, String)> {
        self.0.target.extras.clone().into_iter().collect()
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.0.target.attempt
    }

    pub(crate) fn call_try(&self) -> u32 {
        self.0.target.call_try
    }

    pub(crate) fn started_ms(&self) -> u64 {
        self.0.target.started_ms
    }

    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        self.0.target.deadline_ms
    }

    pub(crate) fn related(&self, name: &str, freshness: Freshness) -> Result<Vec<Object>, ReadError> {
        let relation = self.0.registration.relations.iter().find(|relation| relation.name == name);
        let Some(relation) = relation else {
            let message = format!("Relation {name} is not declared: add it in `setup`.");
            return Err(ReadError { reason: "NotDeclared".to_owned(), message });
        };
        let found = relation::find(&self.0, relation, freshness)?;
        Ok(found.into_iter().map(|doc| Object { doc, scene: Rc::clone(&self.0) }).collect())
    }

    pub(crate) fn task(&self, name: &str) -> Option<TaskStatus> {
        self.0.target.tasks.get(name).cloned()
    }
}

/// Looks up one object. The kit watches every kind, so `Watched` never has to look.
pub(crate) fn get(wanted: &ObjectRef, freshness: Freshness) -> Result<Option<Object>, ReadError> {
    let Some(scene) = SCENE.with_borrow(Clone::clone) else {
        let message = "No call is under way: make it through `oarlock_sdk::kit::Visit`.".to_owned();
        return Err(ReadError { reason: "Unavailable".to_owned(), message });
    };
    let ObjectRef { api_version, kind, namespace, name, uid: _ } = wanted;
    if !scene.manifest.declares(api_version, kind) {
        return Err(undeclared(&format!("{api_version} {kind}")));
    }
    let found = scene.objects(freshness)?.iter().find(|object| {
        Object::text(object, &["apiVersion"]) == Some(api_version)
            && Object::text(object, &["kind"]) == Some(kind)
            && Object::text(object, &["metadata", "namespace"]) == namespace.as_deref()
            && Object::text(object, &["metadata", "name"]) == Some(name)
    });
    Ok(found.cloned().map(|doc| Object { doc, scene: Rc::clone(&scene) }))
}

/// Whether the cluster of the test serves this kind: all but those said not to be.
pub(crate) fn serves(api_version: &str, kind: &str) -> bool {
    let kind = format!("{api_version} {kind}");
    SCENE.with_borrow(|scene| scene.as_ref().is_none_or(|scene| !scene.unserved.contains(&kind)))
}

/// The setting that `pointer` selects.
pub(crate) fn value(pointer: &str) -> Option<String> {
    SCENE.with_borrow(|scene| scene.as_ref().and_then(|scene| select(&scene.config, pointer)))
}

/// In a test every line is kept.
pub(crate) fn enabled(_: Level) -> bool {
    true
}

/// Prints the line; the test harness shows it where the test fails.
pub(crate) fn write(level: Level, message: &str, fields: &[(String, String)]) {
    println!("{level:?} {message} {fields:?}");
}
