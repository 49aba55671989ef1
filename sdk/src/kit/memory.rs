//! The reads that the host offers, from the memory of a test. A read that the
//! manifest does not declare fails.

use std::cell::RefCell;
use std::rc::Rc;

use oarlock_contract::object_key::{Kind, ObjectKey};
use oarlock_contract::reads::{FieldPlace, LAST_APPLIED, METADATA};
use oarlock_contract::visit_record::PluginRead;
use serde_json::Value;

use super::call_data::{CallData, TargetFacts, key_of};
use super::record::{Recorded, lacks};
use super::relation;
use crate::backend::ReadError;
use crate::parse_instant;
use crate::wit::{Freshness, Level, ObjectRef, TaskStatus};

thread_local! {
    /// The data of the current call. The free functions of the contract have
    /// no handle to find it by.
    static CALL_DATA: RefCell<Option<Rc<CallData>>> = const { RefCell::new(None) };
}

/// Runs `call` with `call_data` as the source of its reads.
pub(super) fn within<T>(call_data: &Rc<CallData>, call: impl FnOnce() -> T) -> T {
    let before = CALL_DATA.replace(Some(Rc::clone(call_data)));
    let result = call();
    CALL_DATA.set(before);
    result
}

fn not_declared(message: String) -> ReadError {
    ReadError { reason: "NotDeclared".to_owned(), message }
}

/// Returns the value that `pointer` selects, as JSON text.
fn select(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).map(Value::to_string)
}

/// An object in memory.
#[derive(Debug)]
pub(crate) struct Object {
    doc: Value,
    call_data: Rc<CallData>,
}

impl Object {
    pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
        path.iter().try_fold(value, |value, key| value.get(key)).and_then(Value::as_str)
    }

    fn new(doc: Value, call_data: &Rc<CallData>) -> Self {
        Self { doc: kept(doc), call_data: Rc::clone(call_data) }
    }

    /// Returns the document of the object, and counts the call. Each function
    /// of the contract begins with this.
    fn read(&self) -> &Value {
        self.call_data.count(1);
        &self.doc
    }

    fn part(&self, path: &[&str]) -> Option<String> {
        Self::text(self.read(), path).map(str::to_owned)
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
        let list = self.read().pointer("/metadata/finalizers").and_then(Value::as_array);
        list.into_iter().flatten().any(|finalizer| finalizer == name)
    }

    pub(crate) fn deletion_time_ms(&self) -> Option<u64> {
        self.part(&["metadata", "deletionTimestamp"]).and_then(|time| parse_instant(&time))
    }

    pub(crate) fn field(&self, pointer: &str) -> Result<Option<String>, ReadError> {
        let kind = key_of(self.read()).kind;
        let place = self.call_data.rules.manifest.place_of(&kind, pointer).map_err(not_declared)?;
        if let (Some(record), FieldPlace::Declared) = (&self.call_data.record, place) {
            record.shows(&kind, pointer).unwrap_or_else(|unrecorded| lacks(&unrecorded.to_string()));
        }
        Ok(if place == FieldPlace::Nowhere { None } else { select(&self.doc, pointer) })
    }

    pub(crate) fn json(&self) -> Result<String, ReadError> {
        let (kind, manifest) = (key_of(self.read()).kind, &self.call_data.rules.manifest);
        if let Some(record) = &self.call_data.record {
            record.shows_whole(&kind, manifest).unwrap_or_else(|unrecorded| lacks(&unrecorded.to_string()));
        }
        let mut document = manifest.declared_fields(&kind, &self.doc);
        if let (Some(fields), Some(metadata)) = (document.as_object_mut(), self.doc.get("metadata")) {
            fields.insert("metadata".to_owned(), metadata.clone());
        }
        Ok(document.to_string())
    }
}

/// Returns the object as the host stores it: only with the metadata that every
/// plugin may read.
fn kept(mut doc: Value) -> Value {
    if let Some(Value::Object(metadata)) = doc.get_mut("metadata") {
        metadata.retain(|field, _| METADATA.contains(&field.as_str()));
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(LAST_APPLIED);
        }
    }
    doc
}

/// The job in memory.
#[derive(Debug)]
pub(crate) struct Job(pub(super) Rc<CallData>);

impl Job {
    fn read(&self) -> &CallData {
        self.0.count(1);
        &self.0
    }

    pub(crate) fn namespace(&self) -> String {
        self.read().namespace().to_owned()
    }

    pub(crate) fn name(&self) -> String {
        self.read().record.as_ref().map_or("job", |record| &record.job.name).to_owned()
    }

    pub(crate) fn uid(&self) -> String {
        self.read().job.uid.clone()
    }

    pub(crate) fn action(&self) -> String {
        let own = self.read();
        own.record.as_ref().map_or(&own.rules.manifest.action, |record| &record.job.action).clone()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.read().job.now_ms
    }

    pub(crate) fn parameter(&self, pointer: &str) -> Option<String> {
        select(&self.read().job.parameters, pointer)
    }

    pub(crate) fn target_count(&self) -> u32 {
        self.read().record.as_ref().map_or(1, |record| record.job.target_count)
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.read().job.cancelled
    }
}

/// The target in memory.
#[derive(Debug)]
pub(crate) struct Target(pub(super) Rc<CallData>);

impl Target {
    fn read(&self) -> &TargetFacts {
        self.0.count(1);
        &self.0.target
    }

    pub(crate) fn name(&self) -> String {
        self.read().name.clone()
    }

    pub(crate) fn index(&self) -> u32 {
        self.read();
        self.0.record.as_ref().map_or(0, |record| record.target.index)
    }

    pub(crate) fn kind(&self) -> String {
        self.read();
        self.0.target_key().kind.kind
    }

    pub(crate) fn uid(&self) -> Option<String> {
        self.read().uid.clone()
    }

    pub(crate) fn object(&self) -> Option<Object> {
        self.read().object.clone().map(|doc| Object::new(doc, &self.0))
    }

    pub(crate) fn containers(&self) -> Vec<String> {
        self.read().containers.clone()
    }

    pub(crate) fn extra(&self, key: &str) -> Option<String> {
        self.read().extras.get(key).cloned()
    }

    pub(crate) fn extras(&self) -> Vec<(String, String)> {
        self.read().extras.clone().into_iter().collect()
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.read().attempt
    }

    pub(crate) fn call_try(&self) -> u32 {
        self.read().call_try
    }

    pub(crate) fn started_ms(&self) -> u64 {
        self.read().started_ms
    }

    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        self.read().deadline_ms
    }

    pub(crate) fn related(&self, name: &str, freshness: Freshness) -> Result<Vec<Object>, ReadError> {
        self.read();
        let relation = self.0.registration.relation(name).map_err(not_declared)?;
        let found = match &self.0.record {
            None => relation::find(&self.0, relation, freshness)?,
            Some(record) => {
                let read = PluginRead::Related { name: name.to_owned(), live: freshness == Freshness::Live };
                objects(self.0.recorded(record, &read)?, &read)
            }
        };
        self.0.count(found.len());
        Ok(found.into_iter().map(|doc| Object::new(doc, &self.0)).collect())
    }

    pub(crate) fn task(&self, name: &str) -> Option<TaskStatus> {
        self.read().tasks.get(name).cloned()
    }
}

/// Returns the objects of a recorded answer. Ends the call if the answer is of another read.
fn objects(answer: Recorded, read: &PluginRead) -> Vec<Value> {
    match answer {
        Recorded::Objects(objects) => objects,
        Recorded::Served(_) => lacks(&read.to_string()),
    }
}

fn no_call() -> ReadError {
    let message = "No call is under way: make it through `oarlock_sdk::kit::Visit`.".to_owned();
    ReadError { reason: "Unavailable".to_owned(), message }
}

/// Looks up one object. The read is live if the host does not watch the kind.
pub(crate) fn get(wanted: &ObjectRef, freshness: Freshness) -> Result<Option<Object>, ReadError> {
    let Some(call_data) = CALL_DATA.with_borrow(Clone::clone) else { return Err(no_call()) };
    call_data.count(1);
    let ObjectRef { api_version, kind, namespace, name, uid: _ } = wanted.clone();
    let key = ObjectKey { kind: Kind::new(api_version, kind), namespace, name };
    if !call_data.rules.manifest.may_get(&key).map_err(not_declared)? {
        return Ok(None);
    }
    if let Some(record) = &call_data.record {
        let read = PluginRead::Get { object: key, live: freshness == Freshness::Live };
        let found = objects(call_data.recorded(record, &read)?, &read);
        return Ok(found.into_iter().next().map(|doc| Object::new(doc, &call_data)));
    }
    let freshness = if call_data.watches(&key.kind) { freshness } else { Freshness::Live };
    let found = call_data.objects(freshness)?.iter().find(|object| key_of(object) == key);
    call_data.read.borrow_mut().insert(key.clone());
    Ok(found.map(|doc| Object::new(doc.clone(), &call_data)))
}

/// Returns true if the test's cluster serves this kind. It serves all kinds
/// except those that the test excludes.
pub(crate) fn serves(api_version: &str, kind: &str) -> Result<bool, ReadError> {
    let Some(call_data) = CALL_DATA.with_borrow(Clone::clone) else { return Err(no_call()) };
    call_data.count(1);
    if let Some(record) = &call_data.record {
        let read = PluginRead::Serves { kind: Kind::new(api_version, kind) };
        return match call_data.recorded(record, &read)? {
            Recorded::Served(served) => Ok(served),
            Recorded::Objects(_) => lacks(&read.to_string()),
        };
    }
    if !call_data.watches(&Kind::new(api_version, kind)) {
        call_data.objects(Freshness::Live)?;
    }
    Ok(!call_data.unserved.contains(&format!("{api_version} {kind}")))
}

/// Returns the setting that `pointer` selects.
pub(crate) fn value(pointer: &str) -> Option<String> {
    CALL_DATA.with_borrow(|call_data| {
        call_data.as_ref().and_then(|call_data| {
            call_data.count(1);
            select(&call_data.config, pointer)
        })
    })
}

/// Returns true, because a test keeps every line.
pub(crate) fn enabled(_: Level) -> bool {
    true
}

/// Prints the line. The test harness shows it if the test fails.
pub(crate) fn write(level: Level, message: &str, fields: &[(String, String)]) {
    println!("{level:?} {message} {fields:?}");
}
