//! The host functions that show a plugin its job, its target, objects and its configuration.
//!
//! They show the fields that the manifest declares. All data is in memory, so no function waits, and each copies only the requested values.
//! The functions may not change anything.

use std::sync::Arc;

use oarlock_contract::names::{is_api_version, is_kind};
use oarlock_contract::reads::FieldPlace;
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::plugin::object_json;
use oarlock_core::plugin::visit::{JobFacts, ReadRefusal, Visit};
use serde_json::Value;
use wasmtime::component::Resource;

use crate::run::bindings::{cluster, config, jobs};
use crate::run::guest::Guest;
use crate::run::handles::{JobHandle, ObjectHandle, TargetHandle};

impl Guest {
    /// Counts a call of a host function. Each host function begins with this call.
    fn count_call(&mut self) -> wasmtime::Result<()> {
        self.meter.host_call(1).map_err(wasmtime::Error::new)
    }

    fn job(&mut self, handle: &Resource<JobHandle>) -> wasmtime::Result<Arc<JobFacts>> {
        self.count_call()?;
        Ok(self.table.get(handle)?.0.job.clone())
    }

    fn target(&mut self, handle: &Resource<TargetHandle>) -> wasmtime::Result<Arc<Visit>> {
        self.count_call()?;
        Ok(self.table.get(handle)?.0.clone())
    }

    fn object(&mut self, handle: &Resource<ObjectHandle>) -> wasmtime::Result<Arc<Object>> {
        self.count_call()?;
        Ok(self.table.get(handle)?.0.clone())
    }

    /// Returns the error that the plugin sees. A read that a record lacks ends the call.
    fn read_error(&self, refusal: ReadRefusal) -> wasmtime::Result<cluster::ReadError> {
        match refusal {
            ReadRefusal::NotDeclared(message) | ReadRefusal::NotGranted(message) => Ok(not_declared(message)),
            ReadRefusal::Unavailable => Ok(cluster::ReadError {
                reason: "Unavailable".to_owned(),
                message: "the host has to ask the API server first; the call is repeated once it has".to_owned(),
            }),
            ReadRefusal::Unrecorded => Err(unrecorded()),
        }
    }

    /// Ends the call if the visit is a replay and its record lacks the field.
    fn check_recorded(&self, object: &Object, pointer: Option<&str>) -> wasmtime::Result<()> {
        let shows = self.visit.as_ref().is_none_or(|visit| visit.reads.shows(object, pointer));
        if shows { Ok(()) } else { Err(unrecorded()) }
    }
}

fn unrecorded() -> wasmtime::Error {
    wasmtime::Error::msg("the record lacks the read")
}

fn not_declared(message: String) -> cluster::ReadError {
    cluster::ReadError { reason: "NotDeclared".to_owned(), message }
}

/// Returns the value at `pointer` as JSON text.
fn select(document: &Value, pointer: &str) -> Option<String> {
    document.pointer(pointer).map(Value::to_string)
}

fn ms(time: Option<k8s_openapi::jiff::Timestamp>) -> Option<u64> {
    time.and_then(|time| u64::try_from(time.as_millisecond()).ok())
}

impl config::Host for Guest {
    fn value(&mut self, pointer: String) -> wasmtime::Result<Option<String>> {
        self.count_call()?;
        Ok(select(&self.settings.config, &pointer))
    }
}

impl cluster::Host for Guest {
    fn get(
        &mut self,
        api_version: String,
        kind: String,
        namespace: Option<String>,
        name: String,
        freshness: cluster::Freshness,
    ) -> wasmtime::Result<Result<Option<Resource<ObjectHandle>>, cluster::ReadError>> {
        self.count_call()?;
        let Some(visit) = self.visit.clone() else {
            return Ok(Err(not_declared("there is no object to read during `setup`".to_owned())));
        };
        let key = ObjectKey { kind: Kind::new(api_version, kind), namespace, name };
        let live = freshness == cluster::Freshness::Live;
        let named = match self.settings.manifest.may_get(&key) {
            Ok(named) => named,
            Err(sentence) => {
                let refusal = ReadRefusal::NotDeclared(sentence);
                visit.reads.note_refused(&key, live, &refusal);
                return Ok(Err(self.read_error(refusal)?));
            }
        };
        let namespace = key.namespace.as_deref();
        if namespace.is_some_and(|ns| ns != visit.job.namespace && !self.settings.grant.allows_namespace(ns)) {
            let refusal = ReadRefusal::NotGranted(format!("namespace {namespace:?} is not granted to the plugin"));
            visit.reads.note_refused(&key, live, &refusal);
            return Ok(Err(self.read_error(refusal)?));
        }
        if !named {
            return Ok(Ok(None));
        }
        match visit.reads.get(&key, live) {
            Ok(Some(object)) => Ok(Ok(Some(self.table.push(ObjectHandle(object))?))),
            Ok(None) => Ok(Ok(None)),
            Err(refusal) => Ok(Err(self.read_error(refusal)?)),
        }
    }

    fn serves(&mut self, api_version: String, kind: String) -> wasmtime::Result<Result<bool, cluster::ReadError>> {
        self.count_call()?;
        let Some(visit) = self.visit.clone() else {
            return Ok(Err(not_declared("there is no cluster to ask during `setup`".to_owned())));
        };
        // A kind becomes part of a URL. No kind has an invalid name.
        if !is_api_version(&api_version) || !is_kind(&kind) {
            return Ok(Ok(false));
        }
        match visit.reads.serves(&Kind::new(api_version, kind)) {
            Ok(serves) => Ok(Ok(serves)),
            Err(refusal) => Ok(Err(self.read_error(refusal)?)),
        }
    }
}

impl cluster::HostObject for Guest {
    fn api_version(&mut self, this: Resource<ObjectHandle>) -> wasmtime::Result<String> {
        Ok(self.object(&this)?.key.kind.api_version.clone())
    }

    fn kind(&mut self, this: Resource<ObjectHandle>) -> wasmtime::Result<String> {
        Ok(self.object(&this)?.key.kind.kind.clone())
    }

    fn namespace(&mut self, this: Resource<ObjectHandle>) -> wasmtime::Result<Option<String>> {
        Ok(self.object(&this)?.key.namespace.clone())
    }

    fn name(&mut self, this: Resource<ObjectHandle>) -> wasmtime::Result<String> {
        Ok(self.object(&this)?.key.name.clone())
    }

    fn uid(&mut self, this: Resource<ObjectHandle>) -> wasmtime::Result<String> {
        Ok(self.object(&this)?.uid.clone())
    }

    fn resource_version(&mut self, this: Resource<ObjectHandle>) -> wasmtime::Result<String> {
        Ok(self.object(&this)?.resource_version.clone())
    }

    fn label(&mut self, this: Resource<ObjectHandle>, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.object(&this)?.labels.get(&key).map(str::to_owned))
    }

    fn annotation(&mut self, this: Resource<ObjectHandle>, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.object(&this)?.annotations.get(&key).map(str::to_owned))
    }

    fn has_finalizer(&mut self, this: Resource<ObjectHandle>, name: String) -> wasmtime::Result<bool> {
        Ok(self.object(&this)?.finalizers.contains(&name))
    }

    fn deletion_time_ms(&mut self, this: Resource<ObjectHandle>) -> wasmtime::Result<Option<u64>> {
        Ok(ms(self.object(&this)?.deleted))
    }

    fn field(
        &mut self,
        this: Resource<ObjectHandle>,
        pointer: String,
    ) -> wasmtime::Result<Result<Option<String>, cluster::ReadError>> {
        let object = self.object(&this)?;
        Ok(match self.settings.manifest.place_of(&object.key.kind, &pointer) {
            Ok(FieldPlace::Declared) => {
                self.check_recorded(&object, Some(&pointer))?;
                Ok(select(&object.fields.value(), &pointer))
            }
            Ok(FieldPlace::Metadata) => Ok(object_json::metadata(&object, &pointer)),
            Ok(FieldPlace::Nowhere) => Ok(None),
            Err(sentence) => Err(not_declared(sentence)),
        })
    }

    fn json(&mut self, this: Resource<ObjectHandle>) -> wasmtime::Result<Result<String, cluster::ReadError>> {
        let object = self.object(&this)?;
        self.check_recorded(&object, None)?;
        Ok(Ok(object_json::whole(&object, &self.settings.manifest).to_string()))
    }

    fn drop(&mut self, this: Resource<ObjectHandle>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

impl jobs::Host for Guest {}

impl jobs::HostJob for Guest {
    fn namespace(&mut self, this: Resource<JobHandle>) -> wasmtime::Result<String> {
        Ok(self.job(&this)?.namespace.clone())
    }

    fn name(&mut self, this: Resource<JobHandle>) -> wasmtime::Result<String> {
        Ok(self.job(&this)?.name.clone())
    }

    fn uid(&mut self, this: Resource<JobHandle>) -> wasmtime::Result<String> {
        Ok(self.job(&this)?.uid.clone())
    }

    fn action(&mut self, this: Resource<JobHandle>) -> wasmtime::Result<String> {
        Ok(self.job(&this)?.action.clone())
    }

    fn now_ms(&mut self, this: Resource<JobHandle>) -> wasmtime::Result<u64> {
        Ok(self.job(&this)?.now_ms)
    }

    fn parameter(&mut self, this: Resource<JobHandle>, pointer: String) -> wasmtime::Result<Option<String>> {
        Ok(select(&self.job(&this)?.parameters, &pointer))
    }

    fn target_count(&mut self, this: Resource<JobHandle>) -> wasmtime::Result<u32> {
        Ok(self.job(&this)?.target_count)
    }

    fn cancelled(&mut self, this: Resource<JobHandle>) -> wasmtime::Result<bool> {
        Ok(self.job(&this)?.cancelled)
    }

    fn drop(&mut self, this: Resource<JobHandle>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

impl jobs::HostTarget for Guest {
    fn name(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<String> {
        Ok(self.target(&this)?.target.name.clone())
    }

    fn index(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<u32> {
        Ok(self.target(&this)?.target.index)
    }

    fn kind(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<String> {
        Ok(self.target(&this)?.target.kind.clone())
    }

    fn uid(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<Option<String>> {
        Ok(self.target(&this)?.target.uid.clone())
    }

    fn object(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<Option<Resource<ObjectHandle>>> {
        let object = self.target(&this)?.target.object.clone();
        Ok(object.map(|object| self.table.push(ObjectHandle(object))).transpose()?)
    }

    fn containers(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<Vec<String>> {
        Ok(self.target(&this)?.target.containers.clone())
    }

    fn extra(&mut self, this: Resource<TargetHandle>, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.target(&this)?.target.extras.get(&key).cloned())
    }

    fn extras(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(self.target(&this)?.target.extras.clone().into_iter().collect())
    }

    fn attempt(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<u32> {
        Ok(self.target(&this)?.target.attempt)
    }

    fn call_try(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<u32> {
        Ok(self.target(&this)?.target.call_try)
    }

    fn started_ms(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<u64> {
        Ok(self.target(&this)?.target.started_ms)
    }

    fn deadline_ms(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<Option<u64>> {
        Ok(self.target(&this)?.target.deadline_ms)
    }

    fn related(
        &mut self,
        this: Resource<TargetHandle>,
        relation: String,
        freshness: cluster::Freshness,
    ) -> wasmtime::Result<Result<Vec<Resource<ObjectHandle>>, cluster::ReadError>> {
        let visit = self.target(&this)?;
        match visit.reads.related(&relation, freshness == cluster::Freshness::Live) {
            Ok(objects) => {
                self.meter.host_call(objects.len()).map_err(wasmtime::Error::new)?;
                let handles = objects.into_iter().map(|object| Ok(self.table.push(ObjectHandle(object))?));
                Ok(Ok(handles.collect::<wasmtime::Result<_>>()?))
            }
            Err(refusal) => Ok(Err(self.read_error(refusal)?)),
        }
    }

    fn task(&mut self, this: Resource<TargetHandle>, name: String) -> wasmtime::Result<Option<jobs::TaskStatus>> {
        let task = self.target(&this)?.target.tasks.get(&name).cloned();
        Ok(task.map(|task| jobs::TaskStatus {
            state: task.state.to_owned(),
            exit_code: task.exit_code,
            output: task.output,
            message: task.message,
        }))
    }

    fn drop(&mut self, this: Resource<TargetHandle>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}
