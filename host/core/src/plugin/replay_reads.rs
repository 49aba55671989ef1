//! The visit of a record, for a replay: the same inputs, and reads that only the record answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_contract::recorded_reads::Unrecorded;
use oarlock_contract::visit_record::{PluginRead, ReadAnswer, RecordedCalls, RecordedTarget, VisitJob, VisitRecord};
use serde_json::Value;

use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::plugin::lookup::PluginInfo;
use crate::plugin::visit::{Call, JobFacts, ReadRefusal, Reads, TargetFacts, TaskStatus, Visit};

/// The reads of a replay. A read that the record lacks is noted and refused.
pub struct ReplayReads {
    record: Arc<VisitRecord>,
    plugin: Arc<PluginInfo>,
    /// The objects of the record. `None` for an object that is withheld.
    objects: Vec<Option<Arc<Object>>>,
    unrecorded: Mutex<Option<Unrecorded>>,
}

impl ReplayReads {
    /// Returns the reads of a record for this plugin.
    pub fn new(record: Arc<VisitRecord>, plugin: Arc<PluginInfo>) -> Self {
        let indexes = 0..record.objects.len();
        let objects = indexes.map(|index| record.document(index).and_then(object_of).map(Arc::new)).collect();
        Self { record, plugin, objects, unrecorded: Mutex::default() }
    }

    /// Returns the visit with the recorded inputs.
    pub fn visit(self: &Arc<Self>) -> Visit {
        let call = match self.record.calls {
            RecordedCalls::OperateThenProgress => Call::OperateThenProgress,
            RecordedCalls::Progress => Call::Progress,
            RecordedCalls::Release => Call::Release,
        };
        Visit { job: Arc::new(self.job()), target: self.target(), call, reads: self.clone() }
    }

    /// Returns the first read that the record lacks, if the plugin made one.
    pub fn unrecorded(&self) -> Option<Unrecorded> {
        self.unrecorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lacks(&self, unrecorded: Unrecorded) {
        self.unrecorded.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(unrecorded);
    }

    fn ask(&self, read: &PluginRead) -> Result<ReadAnswer, ReadRefusal> {
        match self.record.answer_to(read, &self.plugin.registration) {
            Ok(ReadAnswer::NotDeclared(why)) => Err(ReadRefusal::NotDeclared(why)),
            Ok(ReadAnswer::NotGranted(why)) => Err(ReadRefusal::NotGranted(why)),
            Ok(ReadAnswer::Unavailable) => Err(ReadRefusal::Unavailable),
            Ok(answer) => Ok(answer),
            Err(unrecorded) => {
                self.lacks(unrecorded);
                Err(ReadRefusal::Unrecorded)
            }
        }
    }

    /// Returns the refusal for an answer of another read, which no host writes.
    fn wrong(&self, read: &PluginRead) -> ReadRefusal {
        self.lacks(Unrecorded { read: read.to_string(), why: "the record answers another read".to_owned() });
        ReadRefusal::Unrecorded
    }

    fn object(&self, index: usize) -> Option<Arc<Object>> {
        self.objects.get(index).cloned().flatten()
    }

    fn job(&self) -> JobFacts {
        let VisitJob { namespace, name, uid, action, now_ms, parameters, target_count, cancelled } =
            self.record.job.clone();
        JobFacts { namespace, name, uid, action, now_ms, parameters, target_count, cancelled }
    }

    fn target(&self) -> TargetFacts {
        let RecordedTarget { tasks, object, .. } = &self.record.target;
        let target = self.record.target.clone();
        let tasks: BTreeMap<String, TaskStatus> = tasks
            .iter()
            .map(|(name, task)| {
                let (exit_code, output, message) = (task.exit_code, task.output.clone(), task.message.clone());
                (name.clone(), TaskStatus { state: task.state.word(), exit_code, output, message })
            })
            .collect();
        TargetFacts {
            name: target.name,
            index: target.index,
            kind: target.kind,
            uid: target.uid,
            object: object.and_then(|index| self.object(index)),
            containers: target.containers,
            extras: target.extras,
            attempt: target.attempt,
            call_try: target.call_try,
            started_ms: target.started_ms,
            deadline_ms: target.deadline_ms,
            tasks,
        }
    }
}

impl Reads for ReplayReads {
    fn related(&self, relation: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        let read = PluginRead::Related { name: relation.to_owned(), live };
        match self.ask(&read)? {
            ReadAnswer::Objects(indexes) => Ok(indexes.into_iter().filter_map(|index| self.object(index)).collect()),
            _ => Err(self.wrong(&read)),
        }
    }

    fn get(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        let read = PluginRead::Get { object: key.clone(), live };
        match self.ask(&read)? {
            ReadAnswer::Object(index) => Ok(index.and_then(|index| self.object(index))),
            _ => Err(self.wrong(&read)),
        }
    }

    fn serves(&self, kind: &Kind) -> Result<bool, ReadRefusal> {
        let read = PluginRead::Serves { kind: kind.clone() };
        match self.ask(&read)? {
            ReadAnswer::Served(served) => Ok(served),
            _ => Err(self.wrong(&read)),
        }
    }

    fn shows(&self, object: &Object, pointer: Option<&str>) -> bool {
        let kind = &object.key.kind;
        let shown = match pointer {
            Some(pointer) => self.record.shows(kind, pointer),
            None => self.record.shows_whole(kind, &self.plugin.manifest),
        };
        shown.map_err(|unrecorded| self.lacks(unrecorded)).is_ok()
    }
}

/// Returns the object in a recorded document, with all its fields. Its annotations are those that the plugin saw.
fn object_of(document: &Value) -> Option<Object> {
    let fields =
        document.as_object()?.keys().filter(|field| !["apiVersion", "kind", "metadata"].contains(&field.as_str()));
    let pointers: Vec<String> =
        fields.map(|field| format!("/{}", field.replace('~', "~0").replace('/', "~1"))).collect();
    let object = Object::slim(document, &Kind::pod(), &pointers)?;
    let annotations = document.pointer("/metadata/annotations").and_then(Value::as_object);
    let annotations =
        annotations.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    Some(Object { annotations: annotations.collect(), ..object })
}
