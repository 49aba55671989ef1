//! The cache of OperationJobs: the newest view of each job, from the watch and from replies.
//!
//! The cache also keeps a job that it cannot parse, so that the job hides no others and can be reported and deleted. The cache never
//! returns a view that is older than the host's last write. After a write with an unknown outcome, the host reads the job first.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use oarlock_api::{OperationJob, OperationJobSpec, OperationJobStatus, UnreadSpec};
use oarlock_core::cache::object_cache::{CacheChange, CachedObject, CachedView, ObjectCache};
use oarlock_core::object::api_object::{ObjectKey, unread};
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::object::memory::{MemoryBudget, memory_of, text_len};
use oarlock_core::object::own::OPS_NAMESPACE;
use oarlock_core::object::quota_key::{QUOTA_KEY, QuotaKey};
use oarlock_core::operation_job::round::finalize::TOO_MANY_FINALIZERS;
use oarlock_core::operation_job::spec::PARAMETERS_BYTES;
use oarlock_core::requests::scripts::named_in;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc::UnboundedSender;

use crate::watch::objects::WatchEvent;

/// The most bytes of the finalizers of a job that the cache keeps.
const FINALIZERS: usize = 2 * 1024;

/// One job at one version.
#[derive(Clone, Debug)]
pub(crate) struct CachedJob {
    pub(crate) key: JobKey,
    pub(crate) uid: String,
    pub(crate) version: u64,
    pub(crate) job: Arc<OperationJob>,
    /// The memory that the job takes.
    pub(crate) bytes: usize,
}

impl CachedJob {
    /// Returns true if this job has the same spec as `newer`.
    fn has_spec_of(&self, newer: &Self) -> bool {
        let generation = |cached: &Self| cached.job.metadata.generation;
        let is_there = |cached: &Self| cached.job.spec.is_some();
        is_there(self) && is_there(newer) && generation(self) == generation(newer)
    }
}

impl CachedObject for CachedJob {
    fn key(&self) -> ObjectKey {
        self.key.object()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    /// The host writes the status, which grows with the targets, so a running job keeps its spec.
    fn is_admitted(&self, before: Option<&Self>) -> bool {
        before.is_some_and(|before| before.has_spec_of(self))
    }

    /// A job whose spec has no room can be reported and deleted, and none of its targets start.
    fn without_spec(self, why: &str) -> Self {
        let unread = Some(UnreadSpec::new(why.to_owned()));
        let job = OperationJob { spec: None, unread, ..(*self.job).clone() };
        Self { job: Arc::new(job), bytes: 0, ..self }
    }
}

/// The cache of OperationJobs.
pub(crate) struct Jobs {
    cache: Mutex<ObjectCache<CachedJob>>,
    events: UnboundedSender<WatchEvent>,
}

impl Jobs {
    pub(crate) fn new(events: UnboundedSender<WatchEvent>, room: &MemoryBudget) -> Self {
        Self { cache: Mutex::new(ObjectCache::within(room)), events }
    }

    /// Returns the newest view of a job, unless it may be older than the host's last write.
    pub(crate) fn view(&self, key: &JobKey) -> CachedView<CachedJob> {
        self.cache.lock().view(&key.object())
    }

    /// Returns the keys of all jobs.
    pub(crate) fn keys(&self) -> Vec<JobKey> {
        self.cache.lock().all().map(|cached| cached.key.clone()).collect()
    }

    /// Returns the UIDs of all jobs.
    pub(crate) fn uids(&self) -> BTreeSet<String> {
        self.cache.lock().all().map(|cached| cached.uid.clone()).collect()
    }

    /// Returns the names of the task scripts that jobs name by digest. Returns `None` while the cache lacks the spec of a job of an OpsJob.
    pub(crate) fn scripts_in_use(&self) -> Option<BTreeSet<String>> {
        let cache = self.cache.lock();
        let is_unknown = |cached: &Arc<CachedJob>| cached.key.namespace == OPS_NAMESPACE && cached.job.spec.is_none();
        if cache.all().any(is_unknown) {
            return None;
        }
        let specs = cache.all().filter_map(|cached| cached.job.spec.as_ref());
        Some(specs.filter_map(|spec| spec.parameters.as_ref()).flat_map(named_in).collect())
    }

    /// Returns the UID of a job.
    pub(crate) fn uid(&self, key: &JobKey) -> Option<String> {
        self.peek(key).map(|cached| cached.uid.clone())
    }

    /// Returns true if the newest view of a job has this UID and resourceVersion.
    pub(crate) fn is_current(&self, key: &JobKey, uid: Option<&str>, version: Option<&str>) -> bool {
        let Some(cached) = self.peek(key) else { return false };
        let same = cached.job.metadata.resource_version.as_deref();
        uid.is_none_or(|uid| uid == cached.uid) && version.is_none_or(|version| Some(version) == same)
    }

    /// Returns the newest view of a job, even if it is uncertain.
    pub(crate) fn peek(&self, key: &JobKey) -> Option<Arc<CachedJob>> {
        self.cache.lock().get(&key.object()).cloned()
    }

    /// Marks a job uncertain: the next view must be newer than the current view in the cache.
    pub(crate) fn mark_uncertain(&self, key: &JobKey) {
        self.cache.lock().doubt(&key.object());
    }

    /// Puts the API server's answer to a read of this job into the cache. The job is no longer uncertain.
    pub(crate) fn confirm(&self, key: &JobKey, answer: Option<CachedJob>) -> Option<Arc<OperationJob>> {
        let known = self.peek(key);
        let before = known.as_ref().filter(|_| answer.is_some()).map(|known| known.uid.as_str());
        let dropped = self.cache.lock().confirm(&key.object(), before, answer.as_ref());
        dropped.iter().for_each(|dropped| self.tell_gone(dropped));
        match answer {
            Some(cached) => self.reply(cached),
            None => known.iter().for_each(|cached| self.remove(cached)),
        }
        self.peek(key).map(|cached| cached.job.clone())
    }

    /// Puts the reply to a request of the host into the cache. A write of the host makes no event. The reply makes an event if it is the
    /// first to show an edit by another client.
    pub(crate) fn reply(&self, cached: CachedJob) {
        let key = cached.key.clone();
        let edited = |old: &CachedJob| {
            let (old, new) = (&old.job.metadata, &cached.job.metadata);
            old.generation != new.generation || old.deletion_timestamp != new.deletion_timestamp || old.uid != new.uid
        };
        let foreign = self.peek(&key).is_none_or(|old| edited(&old));
        if self.put(cached) && foreign {
            self.send(WatchEvent::Job(key));
        }
    }

    /// Takes the API server's answer that the job with this UID no longer exists.
    pub(crate) fn gone(&self, key: &JobKey, uid: &str) {
        let known = self.peek(key).filter(|cached| cached.uid == uid);
        known.into_iter().for_each(|cached| self.remove(&cached));
    }

    /// Puts a view of a job into the cache. Returns true if the cache took it.
    fn put(&self, cached: CachedJob) -> bool {
        let key = cached.key.clone();
        let mut cache = self.cache.lock();
        let change = cache.put(cached);
        // Events tell of changes, so nobody takes the dirty keys.
        cache.take_dirty();
        let newest = cache.get(&key.object()).cloned();
        drop(cache);
        match change {
            CacheChange::Older => return false,
            CacheChange::InPlaceOf(other) => self.tell_gone(&other),
            CacheChange::Newer => {}
        }
        if let Some(UnreadSpec { message: why, .. }) = newest.as_ref().and_then(|newest| newest.job.unread.as_ref()) {
            tracing::warn!(job = %key, why, "failed to read a stored job; its targets do not start until you correct its spec");
        }
        true
    }

    /// Takes the last view of a deleted job.
    pub(crate) fn remove(&self, last: &CachedJob) {
        let dropped = self.cache.lock().remove(&last.key.object(), &last.uid);
        dropped.iter().for_each(|dropped| self.tell_gone(dropped));
    }

    /// Drops a job that the API server does not show now. A later view brings it back.
    fn forget(&self, known: &CachedJob) {
        let dropped = self.cache.lock().forget(&known.key.object(), &known.uid);
        dropped.iter().for_each(|dropped| self.tell_gone(dropped));
    }

    /// Takes a complete list at this version.
    pub(crate) fn listed(&self, items: Vec<CachedJob>, version: u64) {
        let listed: HashSet<String> = items.iter().map(|cached| cached.uid.clone()).collect();
        items.into_iter().for_each(|cached| self.changed(cached));
        let absent = self.cache.lock().absent_from(&listed, version);
        absent.iter().for_each(|cached| self.forget(cached));
    }

    pub(crate) fn changed(&self, cached: CachedJob) {
        let key = cached.key.clone();
        if self.put(cached) {
            self.send(WatchEvent::Job(key));
        }
    }

    fn tell_gone(&self, job: &CachedJob) {
        self.send(WatchEvent::JobGone(JobRef { key: job.key.clone(), uid: job.uid.clone() }));
    }

    fn send(&self, event: WatchEvent) {
        // The receiver is dropped only while the host stops.
        let _stopping = self.events.send(event).is_err();
    }
}

/// Reads the job in a document. Returns `None` if it lacks a name, a namespace or a UID, which every stored object has.
pub(crate) fn read_job(document: &Value) -> Option<CachedJob> {
    let meta = document.get("metadata")?;
    let text = |field: &str| meta.get(field).and_then(Value::as_str).map(str::to_owned);
    let key = JobKey { namespace: text("namespace")?, name: text("name")? };
    let uid = text("uid")?;
    let version = text("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
    let mut job = match OperationJob::deserialize(document) {
        _ if let Some(why) = unread(document) => salvage(document, why.to_owned()),
        Ok(job) => match refuse_parameters(job.spec.as_ref()) {
            Some(message) => {
                OperationJob { spec: None, unread: Some(UnreadSpec { reason: "ParametersInvalid", message }), ..job }
            }
            None => job,
        },
        Err(error) => salvage(document, format!("it cannot be read: {error}")),
    };
    let owner = owner_noted(document);
    job.metadata = what_is_used(job.metadata);
    job.metadata.annotations = owner.map(|owner| [(QUOTA_KEY.to_owned(), owner.text())].into());
    if job.metadata.finalizers.as_ref().is_some_and(|all| all.iter().map(String::len).sum::<usize>() > FINALIZERS) {
        // A write with a shortened list would remove the finalizers of other controllers.
        let message = format!("metadata.finalizers: at most {FINALIZERS} bytes; take some off");
        job.unread = Some(UnreadSpec { reason: TOO_MANY_FINALIZERS, message });
        (job.spec, job.metadata.finalizers) = (None, None);
    }
    let part = |field: &str| document.get(field).map_or(0, memory_of);
    let bytes = if job.spec.is_some() { part("spec").saturating_add(part("status")) } else { 0 };
    Some(CachedJob { key, uid, version, job: Arc::new(job), bytes })
}

/// Returns the key of the quota that a job uses, from the annotation of the host. The annotation counts only in the namespace of jobs on
/// nodes, where only the host may write.
fn owner_noted(document: &Value) -> Option<QuotaKey> {
    let noted = document.pointer("/metadata/annotations")?.get(QUOTA_KEY)?.as_str()?;
    let is_own = document.pointer("/metadata/namespace").and_then(Value::as_str) == Some(OPS_NAMESPACE);
    QuotaKey::read(noted).filter(|_| is_own)
}

/// Returns the metadata that the host uses. The writer of a job decides how large the other metadata is.
fn what_is_used(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta { managed_fields: None, labels: None, annotations: None, owner_references: None, ..metadata }
}

/// Returns a message if the parameters are too large, so that the cache does not keep them.
fn refuse_parameters(spec: Option<&OperationJobSpec>) -> Option<String> {
    let text = text_len(spec?.parameters.as_ref()?);
    let (has, most) = (text.div_ceil(1_024), PARAMETERS_BYTES / 1_024);
    (text > PARAMETERS_BYTES).then(|| format!("spec.parameters: at most {most} KiB, and has {has} KiB"))
}

/// Returns the readable part of a job that cannot be parsed as a whole. The spec is omitted even if only the status is invalid: without a
/// spec no target starts, but the host can still release started targets.
fn salvage(document: &Value, why: String) -> OperationJob {
    let part = |field: &str| document.get(field).cloned().unwrap_or(Value::Null);
    let status = part("status").as_object().map(readable_fields).unwrap_or_default();
    OperationJob {
        api_version: part("apiVersion").as_str().unwrap_or_default().to_owned(),
        kind: part("kind").as_str().unwrap_or_default().to_owned(),
        metadata: serde_json::from_value(part("metadata")).unwrap_or_default(),
        spec: None,
        unread: Some(UnreadSpec::new(why)),
        status: (!status.is_empty())
            .then(|| OperationJobStatus::deserialize(Value::Object(status)).unwrap_or_default()),
    }
}

fn readable_fields(status: &Map<String, Value>) -> Map<String, Value> {
    let reads = |name: &str, value: &Value| {
        let alone = Map::from_iter([(name.to_owned(), value.clone())]);
        OperationJobStatus::deserialize(Value::Object(alone)).is_ok()
    };
    status.iter().filter(|(name, value)| reads(name, value)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

#[cfg(test)]
mod tests {
    use oarlock_core::cache::object_cache::fitting;
    use oarlock_core::object::memory::NamespaceShares;
    use serde_json::json;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    /// The part of the default room that one namespace may have.
    const OF_NAMESPACE: usize = 32 * 1024 * 1024;

    fn jobs() -> (Arc<Jobs>, UnboundedReceiver<WatchEvent>) {
        let (events, replied) = unbounded_channel();
        (Arc::new(Jobs::new(events, &MemoryBudget::default())), replied)
    }

    fn document(name: &str, version: u64) -> Value {
        json!({"metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": version.to_string(),
            "generation": 1, "managedFields": [{}]}, "spec": {"action": "Replace"}})
    }

    fn cached(name: &str, version: u64) -> CachedJob {
        read_job(&document(name, version)).unwrap()
    }

    fn key(name: &str) -> JobKey {
        JobKey { namespace: "d".into(), name: name.into() }
    }

    #[test]
    fn a_view_after_a_lost_reply_must_be_newer_than_the_one_before() {
        let (jobs, _heard) = jobs();
        jobs.changed(cached("a", 5));
        jobs.mark_uncertain(&key("a"));
        assert!(jobs.view(&key("a")).is_uncertain());
        jobs.changed(cached("a", 6));
        assert!(matches!(jobs.view(&key("a")), CachedView::Certain(Some(_))));
    }

    #[test]
    fn a_read_ends_doubt_even_if_it_shows_the_same_version() {
        let (jobs, _heard) = jobs();
        jobs.changed(cached("a", 5));
        jobs.mark_uncertain(&key("a"));
        assert!(jobs.confirm(&key("a"), Some(cached("a", 5))).is_some());
        assert!(matches!(jobs.view(&key("a")), CachedView::Certain(Some(_))));
        assert!(jobs.confirm(&key("a"), None).is_none());
    }

    #[test]
    fn a_late_watch_event_never_hides_an_own_status_write() {
        let (jobs, mut replied) = jobs();
        jobs.changed(cached("a", 5));
        jobs.reply(cached("a", 8));
        jobs.changed(cached("a", 7));
        assert_eq!(jobs.peek(&key("a")).unwrap().version, 8);
        assert!(replied.try_recv().is_ok());
        assert!(replied.try_recv().is_err(), "an own write is no event");
    }

    #[test]
    fn an_edit_that_a_reply_shows_first_is_an_event() {
        let (jobs, mut replied) = jobs();
        jobs.changed(cached("a", 5));
        let mut edited = document("a", 8);
        edited["metadata"]["generation"] = json!(2);
        jobs.reply(read_job(&edited).unwrap());
        assert!(replied.try_recv().is_ok() && replied.try_recv().is_ok());
    }

    #[test]
    fn a_job_that_cannot_be_read_is_known_and_keeps_what_it_can_of_its_status() {
        let mut odd = document("a", 5);
        odd["spec"]["partition"] = json!("many");
        odd["status"] = json!({"epoch": 3, "targetDetails": "lost"});
        let cached = read_job(&odd).unwrap();
        assert!(cached.job.unread.is_some());
        assert_eq!(cached.job.spec, None);
        assert_eq!(cached.job.status.as_ref().unwrap().epoch, Some(3));
        assert_eq!(cached.job.metadata.managed_fields, None);
        assert_eq!(cached.job.metadata.uid.as_deref(), Some("a"));
    }

    #[test]
    fn a_deleted_job_is_not_brought_back_by_a_late_reply() {
        let (jobs, _heard) = jobs();
        jobs.changed(cached("a", 5));
        jobs.remove(&cached("a", 9));
        jobs.reply(cached("a", 8));
        assert!(jobs.peek(&key("a")).is_none());
    }

    #[test]
    fn a_job_that_is_gone_is_told_of_once_by_its_uid_also_where_another_one_has_its_name() {
        let (jobs, mut replied) = jobs();
        let gone = |replied: &mut UnboundedReceiver<WatchEvent>| {
            let told = std::iter::from_fn(|| replied.try_recv().ok());
            let uid = |event| if let WatchEvent::JobGone(job) = event { Some((job.key, job.uid)) } else { None };
            told.filter_map(uid).collect::<Vec<_>>()
        };
        jobs.changed(cached("a", 5));
        assert_eq!(gone(&mut replied), []);
        let mut anew = document("a", 9);
        anew["metadata"]["uid"] = json!("anew");
        // The watch reports the deletion of the first job later.
        jobs.confirm(&key("a"), read_job(&anew));
        assert_eq!(gone(&mut replied), [(key("a"), "a".to_owned())]);
        jobs.remove(&cached("a", 8));
        assert_eq!((gone(&mut replied), jobs.uid(&key("a"))), (vec![], Some("anew".to_owned())));
        jobs.listed(vec![], 10);
        assert_eq!(gone(&mut replied), [(key("a"), "anew".to_owned())]);
    }

    #[test]
    fn parameters_without_end_are_not_held_and_their_owner_is_told() {
        let mut large = document("a", 5);
        large["spec"]["parameters"] = json!({"a": vec![0; 10_000]});
        let cached = read_job(&large).unwrap();
        assert_eq!((cached.job.spec.as_ref(), cached.bytes), (None, 0));
        assert_eq!(
            cached.job.unread.as_ref().map(|why| why.message.as_str()),
            Some("spec.parameters: at most 16 KiB, and has 20 KiB")
        );
        large["spec"]["parameters"] = json!({"a": vec![0; 8_000]});
        assert_eq!(read_job(&large).unwrap().job.unread, None);
    }

    #[test]
    fn whose_shares_a_job_takes_is_believed_where_nobody_but_the_host_writes() {
        let read = |namespace: &str| {
            let mut document = document("a", 5);
            document["metadata"]["namespace"] = json!(namespace);
            document["metadata"]["annotations"] = json!({QUOTA_KEY: "user/alice", "other": "x"});
            read_job(&document).unwrap().job.metadata.annotations.clone()
        };
        assert_eq!(read("team-a"), None);
        assert_eq!(read(OPS_NAMESPACE), Some([(QUOTA_KEY.to_owned(), "user/alice".to_owned())].into()));
    }

    #[test]
    fn of_metadata_is_held_what_is_used_and_a_job_with_finalizers_without_end_is_told() {
        let mut large = document("a", 5);
        let many = (0..20_000).map(|number| (format!("k{number}"), json!(""))).collect::<Value>();
        for field in ["labels", "annotations"] {
            large["metadata"][field] = many.clone();
        }
        large["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "x".repeat(100_000)}]);
        large["metadata"]["finalizers"] = json!(["a/b"]);
        let cached = read_job(&large).unwrap();
        let metadata = &cached.job.metadata;
        assert_eq!((&metadata.labels, &metadata.annotations, &metadata.owner_references), (&None, &None, &None));
        assert_eq!(metadata.finalizers.as_ref().map(Vec::len), Some(1));
        assert!(cached.bytes < 1_024, "{}", cached.bytes);
        large["metadata"]["finalizers"] = vec!["a/b"; 1_000].into();
        let cached = read_job(&large).unwrap();
        assert_eq!((&cached.job.spec, &cached.job.metadata.finalizers), (&None, &None));
        assert!(cached.job.unread.as_ref().unwrap().message.contains("metadata.finalizers: at most"));
    }

    #[test]
    fn the_jobs_of_a_namespace_take_no_more_than_its_share_and_room_comes_back() {
        let (jobs, _heard) = jobs();
        let large = |name: &str, version: u64| CachedJob { bytes: OF_NAMESPACE / 2 + 1, ..cached(name, version) };
        jobs.changed(large("a", 5));
        jobs.changed(large("b", 6));
        let has_spec = |name: &str| jobs.peek(&key(name)).unwrap().job.spec.is_some();
        assert_eq!((has_spec("a"), has_spec("b")), (true, false));
        assert!(
            jobs.peek(&key("b"))
                .unwrap()
                .job
                .unread
                .clone()
                .unwrap()
                .message
                .contains("namespace d take more than their share")
        );
        jobs.changed(CachedJob { bytes: OF_NAMESPACE + 1, ..cached("a", 8) });
        assert!(has_spec("a"), "its status has grown, and it is under way");
        jobs.remove(&cached("a", 9));
        jobs.changed(large("b", 10));
        assert!(has_spec("b"), "there is room now");
        let mut listed = NamespaceShares::default();
        let fits = |cached: CachedJob, listed: &mut NamespaceShares| fitting(cached, listed).job.spec.is_some();
        assert!(fits(large("c", 1), &mut listed) && !fits(large("e", 2), &mut listed));
    }

    #[test]
    fn jobs_come_back_after_a_server_did_not_serve_their_kind_for_a_moment() {
        let (jobs, mut replied) = jobs();
        jobs.changed(cached("a", 5));
        jobs.listed(vec![], u64::MAX);
        assert!(jobs.keys().is_empty());
        jobs.listed(vec![cached("a", 5)], 7);
        assert_eq!(jobs.keys(), [key("a")]);
        let events: Vec<bool> =
            std::iter::from_fn(|| replied.try_recv().ok()).map(|event| matches!(event, WatchEvent::Job(_))).collect();
        assert_eq!(events, [true, false, true]);
    }

    #[test]
    fn a_list_drops_the_jobs_that_it_lacks() {
        let (jobs, _heard) = jobs();
        jobs.changed(cached("a", 5));
        jobs.listed(vec![cached("b", 6)], 7);
        assert_eq!(jobs.keys(), [key("b")]);
    }
}
