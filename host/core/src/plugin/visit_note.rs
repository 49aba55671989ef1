//! Notes of one visit: its inputs and outputs as the host holds them, and the record that they become.
//!
//! Notes share the host's objects, so that a recorded round costs little. [`VisitNote::record`] does the work later.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_contract::limits::{CAPS, PluginLimits};
use oarlock_contract::visit_record::{
    CONTRACT, FORMAT, MAX_READS, PluginRead, ReadAnswer, RecordedAnswer, RecordedCalls, RecordedFields, RecordedObject,
    RecordedPlugin, RecordedRead, RecordedTarget, RecordedTask, RecordedVerdict, TaskState, VisitCost, VisitJob,
    VisitRecord, is_secret, withhold,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::object::canonical::canonical;
use crate::plugin::lookup::PluginInfo;
use crate::plugin::object_json;
use crate::plugin::visit::{Answer, Call, JobFacts, ReadRefusal, Reads, TargetFacts, Visit, VisitUse};

/// The estimated bytes of an object, a read or a visit without its texts.
const FIXED_BYTES: usize = 512;

/// An object that a visit saw.
#[derive(Clone, Debug)]
enum NotedObject {
    Shown(Arc<Object>),
    /// The key of an object whose contents no record may have. Not even the notes hold them.
    Withheld(ObjectKey),
}

/// The answer to a read, as the host gave it.
#[derive(Clone, Debug)]
enum NotedAnswer {
    Objects(Vec<NotedObject>),
    Object(Option<NotedObject>),
    Served(bool),
    Refused(ReadRefusal),
}

/// The reads of a visit that is being recorded. They answer as the inner reads do.
pub struct NotedReads {
    inner: Arc<dyn Reads>,
    noted: Mutex<Vec<(PluginRead, NotedAnswer)>>,
}

/// The inputs of a visit that has begun.
pub struct BegunNote {
    job: Arc<JobFacts>,
    target: TargetFacts,
    call: Call,
    reads: Arc<NotedReads>,
}

/// The outputs of a visit.
#[derive(Clone, Debug)]
pub struct VisitOutputs {
    /// The answer as it came from the plugin.
    pub answer: Answer,
    /// The cost of the visit.
    pub cost: VisitUse,
    /// The time of the visit, in microseconds.
    pub microseconds: u64,
    /// The host's decision.
    pub verdict: RecordedVerdict,
}

/// The notes of one visit.
pub struct VisitNote {
    plugin: Arc<PluginInfo>,
    /// The number of the recorded round.
    round: u64,
    job: Arc<JobFacts>,
    target: TargetFacts,
    call: Call,
    reads: Vec<(PluginRead, NotedAnswer)>,
    outputs: VisitOutputs,
}

/// The plugin and the number of a recorded round.
#[derive(Clone)]
pub struct NotedRound {
    /// The plugin that the round calls.
    pub plugin: Arc<PluginInfo>,
    /// The number of the round.
    pub number: u64,
}

impl NotedObject {
    fn of(object: &Arc<Object>) -> Self {
        if is_secret(&object.key.kind) {
            return Self::Withheld(object.key.clone());
        }
        Self::Shown(object.clone())
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Shown(object) => bytes_of(object),
            Self::Withheld(_) => FIXED_BYTES,
        }
    }
}

fn bytes_of(object: &Object) -> usize {
    FIXED_BYTES + object.labels.bytes() + object.annotations.bytes() + object.fields.bytes()
}

impl NotedReads {
    /// Notes an answer, unless the read was already made in this visit. A further read after [`MAX_READS`] is noted without its answer, so that the
    /// record is known to be incomplete.
    fn note(&self, read: PluginRead, answer: impl FnOnce() -> NotedAnswer) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() <= MAX_READS && noted.iter().all(|(own, _)| *own != read) {
            noted.push((read, answer()));
        }
    }
}

impl Reads for NotedReads {
    fn related(&self, relation: &str, live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        let answer = self.inner.related(relation, live);
        self.note(PluginRead::Related { name: relation.to_owned(), live }, || match &answer {
            Ok(objects) => NotedAnswer::Objects(objects.iter().map(NotedObject::of).collect()),
            Err(refusal) => NotedAnswer::Refused(refusal.clone()),
        });
        answer
    }

    fn get(&self, key: &ObjectKey, live: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        let answer = self.inner.get(key, live);
        self.note(PluginRead::Get { object: key.clone(), live }, || match &answer {
            Ok(object) => NotedAnswer::Object(object.as_ref().map(NotedObject::of)),
            Err(refusal) => NotedAnswer::Refused(refusal.clone()),
        });
        answer
    }

    fn serves(&self, kind: &Kind) -> Result<bool, ReadRefusal> {
        let answer = self.inner.serves(kind);
        self.note(PluginRead::Serves { kind: kind.clone() }, || match &answer {
            Ok(served) => NotedAnswer::Served(*served),
            Err(refusal) => NotedAnswer::Refused(refusal.clone()),
        });
        answer
    }

    fn note_refused(&self, key: &ObjectKey, live: bool, refusal: &ReadRefusal) {
        self.note(PluginRead::Get { object: key.clone(), live }, || NotedAnswer::Refused(refusal.clone()));
    }

    fn shows(&self, object: &Object, pointer: Option<&str>) -> bool {
        self.inner.shows(object, pointer)
    }
}

impl BegunNote {
    /// Begins the notes of a visit. The visit then reads through the notes.
    pub fn begin(visit: &mut Visit) -> Self {
        let reads = Arc::new(NotedReads { inner: visit.reads.clone(), noted: Mutex::default() });
        visit.reads = reads.clone();
        Self { job: visit.job.clone(), target: visit.target.clone(), call: visit.call, reads }
    }

    /// Ends the notes. Returns `None` if the visit had more than [`MAX_READS`] reads.
    pub fn end(self, round: &NotedRound, outputs: VisitOutputs) -> Option<VisitNote> {
        let Self { job, target, call, reads } = self;
        let reads = std::mem::take(&mut *reads.noted.lock().unwrap_or_else(PoisonError::into_inner));
        let (plugin, round) = (round.plugin.clone(), round.number);
        (reads.len() <= MAX_READS).then_some(VisitNote { plugin, round, job, target, call, reads, outputs })
    }
}

impl VisitNote {
    /// Returns the name of the plugin.
    pub fn plugin(&self) -> &str {
        &self.plugin.manifest.name
    }

    /// Returns the job's namespace and name.
    pub fn job(&self) -> (&str, &str) {
        (&self.job.namespace, &self.job.name)
    }

    /// Returns the job's UID and the index of the target.
    pub fn target(&self) -> (&str, u32) {
        (&self.job.uid, self.target.index)
    }

    /// Returns the outputs of the visit.
    pub fn outputs(&self) -> &VisitOutputs {
        &self.outputs
    }

    /// Returns the estimated bytes that the notes hold, including the objects.
    pub fn bytes(&self) -> usize {
        let of_read = |(_, answer): &(PluginRead, NotedAnswer)| {
            FIXED_BYTES
                + match answer {
                    NotedAnswer::Objects(objects) => objects.iter().map(NotedObject::bytes).sum(),
                    NotedAnswer::Object(object) => object.as_ref().map_or(0, NotedObject::bytes),
                    NotedAnswer::Served(_) | NotedAnswer::Refused(_) => 0,
                }
        };
        let object = self.target.object.as_deref().map_or(0, bytes_of);
        let extras: usize = self.target.extras.iter().map(|(key, value)| key.len() + value.len()).sum();
        let tasks: usize = self.target.tasks.values().map(|task| task.output.len() + task.message.len()).sum();
        let answer = usize::try_from(self.outputs.cost.answer_bytes).unwrap_or(usize::MAX);
        let reads: usize = self.reads.iter().map(of_read).sum();
        [object, extras, tasks, reads].into_iter().fold(answer.saturating_add(FIXED_BYTES), usize::saturating_add)
    }

    /// Returns the record of the visit.
    pub fn record(&self) -> VisitRecord {
        let Self { plugin, round, job, target, call, reads, outputs } = self;
        let mut objects = RecordedObjects { plugin, all: Vec::new(), indexes: HashMap::new(), fields: BTreeMap::new() };
        let target = RecordedTarget {
            name: target.name.clone(),
            index: target.index,
            kind: target.kind.clone(),
            uid: target.uid.clone(),
            object: target.object.as_ref().map(|object| objects.index(object)),
            containers: target.containers.clone(),
            extras: target.extras.clone(),
            attempt: target.attempt,
            call_try: target.call_try,
            started_ms: target.started_ms,
            deadline_ms: target.deadline_ms,
            tasks: recorded_tasks(target),
        };
        let reads =
            reads.iter().map(|(read, answer)| RecordedRead { read: read.clone(), answer: objects.answer(answer) });
        let reads: Vec<RecordedRead> = reads.collect();
        let RecordedObjects { all, fields, .. } = objects;
        VisitRecord {
            format: FORMAT.to_owned(),
            contract: CONTRACT.to_owned(),
            plugin: recorded_plugin(plugin),
            job: recorded_job(job),
            target,
            calls: match call {
                Call::OperateThenProgress => RecordedCalls::OperateThenProgress,
                Call::Progress => RecordedCalls::Progress,
                Call::Release => RecordedCalls::Release,
            },
            position: outputs.cost.position,
            reads,
            objects: all,
            fields: fields.into_iter().map(|(kind, pointers)| RecordedFields { kind, pointers }).collect(),
            answer: recorded_answer(&outputs.answer),
            cost: VisitCost {
                host_calls: outputs.cost.host_calls,
                microseconds: outputs.microseconds,
                memory_bytes: outputs.cost.memory_bytes,
            },
            verdict: outputs.verdict.clone(),
            round: *round,
        }
    }
}

/// The objects of a record, each once.
struct RecordedObjects<'a> {
    plugin: &'a PluginInfo,
    all: Vec<RecordedObject>,
    /// Indexes by key, UID and resourceVersion.
    indexes: HashMap<(&'a ObjectKey, &'a str, &'a str), usize>,
    fields: BTreeMap<Kind, std::collections::BTreeSet<String>>,
}

impl<'a> RecordedObjects<'a> {
    fn index(&mut self, object: &'a Object) -> usize {
        let id = (&object.key, object.uid.as_str(), object.resource_version.as_str());
        if let Some(index) = self.indexes.get(&id) {
            return *index;
        }
        let manifest = &self.plugin.manifest;
        self.fields.entry(object.key.kind.clone()).or_insert_with(|| {
            let rules = manifest.reads.iter();
            let rules = rules.filter(|rule| Kind::new(&rule.api_version, &rule.kind) == object.key.kind);
            rules.flat_map(|rule| rule.fields.iter().cloned()).collect()
        });
        let index = self.add(RecordedObject::Shown(object_json::whole(object, manifest)));
        self.indexes.insert(id, index);
        index
    }

    fn add(&mut self, object: RecordedObject) -> usize {
        self.all.push(object);
        self.all.len().saturating_sub(1)
    }

    fn noted(&mut self, object: &'a NotedObject) -> usize {
        match object {
            NotedObject::Shown(object) => self.index(object),
            NotedObject::Withheld(key) => self.add(RecordedObject::Withheld(key.clone())),
        }
    }

    fn answer(&mut self, answer: &'a NotedAnswer) -> ReadAnswer {
        match answer {
            NotedAnswer::Objects(objects) => {
                ReadAnswer::Objects(objects.iter().map(|object| self.noted(object)).collect())
            }
            NotedAnswer::Object(object) => ReadAnswer::Object(object.as_ref().map(|object| self.noted(object))),
            NotedAnswer::Served(served) => ReadAnswer::Served(*served),
            NotedAnswer::Refused(ReadRefusal::NotDeclared(why)) => ReadAnswer::NotDeclared(why.clone()),
            NotedAnswer::Refused(ReadRefusal::NotGranted(why)) => ReadAnswer::NotGranted(why.clone()),
            NotedAnswer::Refused(ReadRefusal::Unavailable | ReadRefusal::Unrecorded) => ReadAnswer::Unavailable,
        }
    }
}

fn recorded_plugin(plugin: &PluginInfo) -> RecordedPlugin {
    let PluginInfo { manifest, grant, registration, digest } = plugin;
    RecordedPlugin {
        name: manifest.name.clone(),
        version: manifest.version.to_string(),
        digest: digest.clone(),
        limits: PluginLimits::of(&manifest.limits, &grant.limits, &CAPS),
        config_digest: grant.config.as_ref().map(config_digest),
        relations: registration.relations.clone(),
    }
}

fn recorded_job(job: &JobFacts) -> VisitJob {
    let JobFacts { namespace, name, uid, action, now_ms, parameters, target_count, cancelled } = job.clone();
    VisitJob { namespace, name, uid, action, now_ms, parameters, target_count, cancelled }
}

fn recorded_tasks(target: &TargetFacts) -> BTreeMap<String, RecordedTask> {
    let task = |task: &crate::plugin::visit::TaskStatus| RecordedTask {
        state: TaskState::of(task.state),
        exit_code: task.exit_code,
        output: task.output.clone(),
        message: task.message.clone(),
    };
    target.tasks.iter().map(|(name, status)| (name.clone(), task(status))).collect()
}

/// Returns the digest of an operator's settings, `sha256:...`. The order of their fields does not matter.
pub fn config_digest(config: &Value) -> String {
    let digest = Sha256::digest(canonical(config).as_bytes());
    format!("sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Returns an answer as a record has it, without the contents of Secrets.
pub fn recorded_answer(answer: &Answer) -> RecordedAnswer {
    match answer.clone() {
        Answer::Proposed(mut proposal) => {
            withhold(&mut proposal);
            RecordedAnswer::Proposed(proposal)
        }
        Answer::Reported { mut operate, mut report } => {
            withhold(&mut operate);
            withhold(&mut report.proposal);
            RecordedAnswer::Reported { operate, report }
        }
        Answer::Failed(failure) => RecordedAnswer::Failed(failure),
        Answer::Trapped(trap) => RecordedAnswer::Trapped { reason: trap.reason.to_owned(), message: trap.message },
    }
}
