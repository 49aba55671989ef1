//! The OperationJobs in memory: the newest view of each, from the watch and from replies.
//!
//! A job that cannot be read is known all the same, so that it never hides others and can be reported and deleted. The
//! cache never hands out a view that is older than the host's own last write: after a write of unknown outcome the job is
//! read first.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use oarlock_api::{OperationJob, OperationJobSpec, OperationJobStatus, UnreadSpec};
use oarlock_core::cluster::memory::{NamespaceShares, Room, memory_of, text_len};
use oarlock_core::cluster::object::unread;
use oarlock_core::cluster::own::OPS_NAMESPACE;
use oarlock_core::cluster::scripts::named_in;
use oarlock_core::job::key::{JobKey, JobRef};
use oarlock_core::job::spec::PARAMETERS_BYTES;
use oarlock_core::round::finalize::TOO_MANY_FINALIZERS;
use oarlock_core::shared::quota_key::{QUOTA_KEY, QuotaKey};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc::UnboundedSender;

use crate::watch::watches::WatchEvent;

/// Most bytes of the finalizers of a job that are held.
const FINALIZERS: usize = 2 * 1024;
/// More than can be deleted while a reply is under way.
const TOMBSTONES: usize = 4_096;

/// One job as it was at one version.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) key: JobKey,
    pub(crate) uid: String,
    pub(crate) version: u64,
    pub(crate) job: Arc<OperationJob>,
    /// The memory that it takes.
    pub(crate) bytes: usize,
}

impl Held {
    /// Counts it in place of the `before` bytes that it took. Where there is no room for its spec, it is known, reported and deleted,
    /// and none of its targets start.
    pub(crate) fn within(self, shares: &mut NamespaceShares, before: usize) -> Self {
        match shares.admit(&self.key.namespace, before, self.bytes) {
            Ok(()) => self,
            Err(why) => self.without_spec(why),
        }
    }

    /// True if it has the spec that `newer` has.
    fn has_spec_of(&self, newer: &Self) -> bool {
        let generation = |held: &Self| held.job.metadata.generation;
        let is_there = |held: &Self| held.job.spec.is_some();
        self.uid == newer.uid && is_there(self) && is_there(newer) && generation(self) == generation(newer)
    }

    fn without_spec(self, why: String) -> Self {
        let job = OperationJob { spec: None, unread: Some(UnreadSpec::new(why)), ..(*self.job).clone() };
        Self { job: Arc::new(job), bytes: 0, ..self }
    }
}

/// The view of a job in the cache.
pub(crate) enum View {
    /// No older than the host's own last write.
    Trusted(Option<Arc<OperationJob>>),
    /// Perhaps older: read it.
    Doubtful,
}

/// The OperationJobs in memory.
pub(crate) struct Jobs {
    held: Mutex<Cache>,
    events: UnboundedSender<WatchEvent>,
}

#[derive(Default)]
struct Cache {
    jobs: HashMap<JobKey, Held>,
    gone: HashSet<String>,
    tombstones: VecDeque<String>,
    /// Versions that the next view must exceed, after a write that was refused as old or has an unknown outcome.
    doubts: HashMap<JobKey, u64>,
    shares: NamespaceShares,
}

impl Cache {
    /// Notes that a job is gone. True if that was not known.
    fn bury(&mut self, uid: &str) -> bool {
        let is_news = self.gone.insert(uid.to_owned());
        if is_news {
            self.tombstones.push_back(uid.to_owned());
        }
        if self.tombstones.len() > TOMBSTONES
            && let Some(oldest) = self.tombstones.pop_front()
        {
            self.gone.remove(&oldest);
        }
        is_news
    }
}

impl Jobs {
    pub(crate) fn new(events: UnboundedSender<WatchEvent>, room: &Room) -> Self {
        let held = Cache { shares: NamespaceShares::within(room), ..Cache::default() };
        Self { held: Mutex::new(held), events }
    }

    /// The newest view of a job.
    pub(crate) fn view(&self, key: &JobKey) -> View {
        let cache = self.held.lock();
        let held = cache.jobs.get(key);
        let version = held.map_or(0, |held| held.version);
        match cache.doubts.get(key) {
            Some(exceeded) if version <= *exceeded => View::Doubtful,
            _ => View::Trusted(held.map(|held| held.job.clone())),
        }
    }

    /// The keys of all jobs.
    pub(crate) fn keys(&self) -> Vec<JobKey> {
        self.held.lock().jobs.keys().cloned().collect()
    }

    /// The UIDs of all jobs.
    pub(crate) fn uids(&self) -> BTreeSet<String> {
        self.held.lock().jobs.values().map(|held| held.uid.clone()).collect()
    }

    /// The names of the scripts of tasks that jobs name by digest; `None` while there is a job of an OpsJob whose spec is not held.
    pub(crate) fn scripts_in_use(&self) -> Option<BTreeSet<String>> {
        let cache = self.held.lock();
        let is_unknown = |held: &Held| held.key.namespace == OPS_NAMESPACE && held.job.spec.is_none();
        if cache.jobs.values().any(is_unknown) {
            return None;
        }
        let specs = cache.jobs.values().filter_map(|held| held.job.spec.as_ref());
        Some(specs.filter_map(|spec| spec.parameters.as_ref()).flat_map(named_in).collect())
    }

    /// The UID of a job.
    pub(crate) fn uid(&self, key: &JobKey) -> Option<String> {
        self.held.lock().jobs.get(key).map(|held| held.uid.clone())
    }

    /// True while the newest view of a job is the one of this UID and resourceVersion.
    pub(crate) fn is_current(&self, key: &JobKey, uid: Option<&str>, version: Option<&str>) -> bool {
        let cache = self.held.lock();
        let Some(held) = cache.jobs.get(key) else { return false };
        let same = held.job.metadata.resource_version.as_deref();
        uid.is_none_or(|uid| uid == held.uid) && version.is_none_or(|version| Some(version) == same)
    }

    /// The newest view of a job, trusted or not.
    pub(crate) fn peek(&self, key: &JobKey) -> Option<Held> {
        self.held.lock().jobs.get(key).cloned()
    }

    /// The next view must be newer than the one the cache has now.
    pub(crate) fn doubt(&self, key: &JobKey) {
        let mut cache = self.held.lock();
        let version = cache.jobs.get(key).map_or(0, |held| held.version);
        cache.doubts.insert(key.clone(), version);
    }

    /// Puts in the API server's answer to a read of this job, which ends all doubt.
    pub(crate) fn confirm(&self, key: &JobKey, answer: Option<Held>) -> Option<Arc<OperationJob>> {
        self.held.lock().doubts.remove(key);
        match answer {
            Some(held) => {
                self.reply(held);
            }
            None => {
                let known = self.peek(key);
                known.into_iter().for_each(|held| self.remove(&held));
            }
        }
        self.peek(key).map(|held| held.job)
    }

    /// Puts in the reply to one of the host's own requests. The host's own write is no event; an edit by another client
    /// that the reply is the first to show is one.
    pub(crate) fn reply(&self, held: Held) {
        let key = held.key.clone();
        let edited = |old: &Held| {
            let (old, new) = (&old.job.metadata, &held.job.metadata);
            old.generation != new.generation || old.deletion_timestamp != new.deletion_timestamp || old.uid != new.uid
        };
        let foreign = self.peek(&key).is_none_or(|old| edited(&old));
        if self.put(held) && foreign {
            self.send(WatchEvent::Job(key));
        }
    }

    /// The API server answered that the job of this UID is gone.
    pub(crate) fn gone(&self, key: &JobKey, uid: &str) {
        let known = self.peek(key).filter(|held| held.uid == uid);
        known.into_iter().for_each(|held| self.remove(&held));
    }

    fn put(&self, held: Held) -> bool {
        let mut cache = self.held.lock();
        let known = cache.jobs.get(&held.key);
        let (old, before) = known.map_or((0, 0), |known| (known.version, known.bytes));
        // Its status, which the host writes, grows with its targets: a job that is under way keeps its spec.
        let is_under_way = known.is_some_and(|known| known.has_spec_of(&held));
        if cache.gone.contains(&held.uid) || (old >= held.version && held.version > 0) {
            return false;
        }
        let held = if is_under_way {
            cache.shares.count(&held.key.namespace, before, held.bytes);
            held
        } else {
            held.within(&mut cache.shares, before)
        };
        if let Some(UnreadSpec { message: why, .. }) = &held.job.unread {
            tracing::warn!(job = %held.key, why, "failed to read a stored job; none of its targets start until its spec is corrected");
        }
        let (key, uid) = (held.key.clone(), held.uid.clone());
        let before = cache.jobs.insert(key.clone(), held).filter(|before| before.uid != uid);
        // The name is free only once the job that had it is gone.
        if let Some(uid) = before.map(|before| before.uid).filter(|uid| cache.bury(uid)) {
            self.send(WatchEvent::JobGone(JobRef { key, uid }));
        }
        true
    }

    pub(crate) fn remove(&self, last: &Held) {
        let mut cache = self.held.lock();
        let is_news = cache.bury(&last.uid);
        if cache.jobs.get(&last.key).is_some_and(|held| held.uid == last.uid) {
            let before = cache.jobs.remove(&last.key).map_or(0, |held| held.bytes);
            cache.shares.count(&last.key.namespace, before, 0);
            cache.doubts.remove(&last.key);
        }
        drop(cache);
        if is_news {
            self.send(WatchEvent::JobGone(JobRef { key: last.key.clone(), uid: last.uid.clone() }));
        }
    }

    fn send(&self, event: WatchEvent) {
        // The receiver is gone only while the host stops.
        let _stopping = self.events.send(event).is_err();
    }
}

impl Jobs {
    /// Takes a complete list as of this version.
    pub(crate) fn listed(&self, items: Vec<Held>, version: u64) {
        let listed: HashSet<String> = items.iter().map(|held| held.uid.clone()).collect();
        items.into_iter().for_each(|held| self.changed(held));
        let stale: Vec<Held> = {
            let cache = self.held.lock();
            let held = cache.jobs.values().filter(|held| held.version <= version && !listed.contains(&held.uid));
            held.cloned().collect()
        };
        stale.iter().for_each(|held| self.remove(held));
    }

    pub(crate) fn changed(&self, held: Held) {
        let key = held.key.clone();
        if self.put(held) {
            self.send(WatchEvent::Job(key));
        }
    }
}

/// The job in a document. `None` where it lacks a name, a namespace or a UID, which no stored object does.
pub(crate) fn read_job(document: &Value) -> Option<Held> {
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
        // A list that was cut could not be written: it would take off the finalizers of others.
        let message = format!("metadata.finalizers: at most {FINALIZERS} bytes; take some off");
        job.unread = Some(UnreadSpec { reason: TOO_MANY_FINALIZERS, message });
        (job.spec, job.metadata.finalizers) = (None, None);
    }
    let part = |field: &str| document.get(field).map_or(0, memory_of);
    let bytes = if job.spec.is_some() { part("spec").saturating_add(part("status")) } else { 0 };
    Some(Held { key, uid, version, job: Arc::new(job), bytes })
}

/// Returns the key whose shares a job takes, as the host noted it. The annotation counts only in the namespace of jobs on nodes, where
/// nobody but the host writes.
fn owner_noted(document: &Value) -> Option<QuotaKey> {
    let noted = document.pointer("/metadata/annotations")?.get(QUOTA_KEY)?.as_str()?;
    let is_own = document.pointer("/metadata/namespace").and_then(Value::as_str) == Some(OPS_NAMESPACE);
    QuotaKey::read(noted).filter(|_| is_own)
}

/// The metadata that the host uses: whoever writes a job decides how much of the rest it has.
fn what_is_used(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta { managed_fields: None, labels: None, annotations: None, owner_references: None, ..metadata }
}

/// Larger parameters are refused before they are held.
fn refuse_parameters(spec: Option<&OperationJobSpec>) -> Option<String> {
    let text = text_len(spec?.parameters.as_ref()?);
    let (has, most) = (text.div_ceil(1_024), PARAMETERS_BYTES / 1_024);
    (text > PARAMETERS_BYTES).then(|| format!("spec.parameters: at most {most} KiB, and has {has} KiB"))
}

/// The readable part of a job that cannot be read whole. Its spec is left out even if only its status is odd: without a
/// spec nothing starts, and whatever started can still be released.
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
    use serde_json::json;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    /// What a namespace may have of the usual room.
    const OF_NAMESPACE: usize = 32 * 1024 * 1024;

    fn jobs() -> (Arc<Jobs>, UnboundedReceiver<WatchEvent>) {
        let (events, heard) = unbounded_channel();
        (Arc::new(Jobs::new(events, &Room::default())), heard)
    }

    fn document(name: &str, version: u64) -> Value {
        json!({"metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": version.to_string(),
            "generation": 1, "managedFields": [{}]}, "spec": {"action": "Replace"}})
    }

    fn held(name: &str, version: u64) -> Held {
        read_job(&document(name, version)).unwrap()
    }

    fn key(name: &str) -> JobKey {
        JobKey { namespace: "d".into(), name: name.into() }
    }

    #[test]
    fn a_view_after_a_lost_reply_must_be_newer_than_the_one_before() {
        let (jobs, _heard) = jobs();
        jobs.changed(held("a", 5));
        jobs.doubt(&key("a"));
        assert!(matches!(jobs.view(&key("a")), View::Doubtful));
        jobs.changed(held("a", 6));
        assert!(matches!(jobs.view(&key("a")), View::Trusted(Some(_))));
    }

    #[test]
    fn a_read_ends_doubt_even_if_it_shows_the_same_version() {
        let (jobs, _heard) = jobs();
        jobs.changed(held("a", 5));
        jobs.doubt(&key("a"));
        assert!(jobs.confirm(&key("a"), Some(held("a", 5))).is_some());
        assert!(matches!(jobs.view(&key("a")), View::Trusted(Some(_))));
        assert!(jobs.confirm(&key("a"), None).is_none());
    }

    #[test]
    fn a_late_watch_event_never_hides_an_own_status_write() {
        let (jobs, mut heard) = jobs();
        jobs.changed(held("a", 5));
        jobs.reply(held("a", 8));
        jobs.changed(held("a", 7));
        assert_eq!(jobs.peek(&key("a")).unwrap().version, 8);
        assert!(heard.try_recv().is_ok());
        assert!(heard.try_recv().is_err(), "an own write is no event");
    }

    #[test]
    fn an_edit_that_a_reply_shows_first_is_an_event() {
        let (jobs, mut heard) = jobs();
        jobs.changed(held("a", 5));
        let mut edited = document("a", 8);
        edited["metadata"]["generation"] = json!(2);
        jobs.reply(read_job(&edited).unwrap());
        assert!(heard.try_recv().is_ok() && heard.try_recv().is_ok());
    }

    #[test]
    fn a_job_that_cannot_be_read_is_known_and_keeps_what_it_can_of_its_status() {
        let mut odd = document("a", 5);
        odd["spec"]["partition"] = json!("many");
        odd["status"] = json!({"epoch": 3, "targetDetails": "lost"});
        let held = read_job(&odd).unwrap();
        assert!(held.job.unread.is_some());
        assert_eq!(held.job.spec, None);
        assert_eq!(held.job.status.as_ref().unwrap().epoch, Some(3));
        assert_eq!(held.job.metadata.managed_fields, None);
        assert_eq!(held.job.metadata.uid.as_deref(), Some("a"));
    }

    #[test]
    fn a_deleted_job_is_not_brought_back_by_a_late_reply() {
        let (jobs, _heard) = jobs();
        jobs.changed(held("a", 5));
        jobs.remove(&held("a", 9));
        jobs.reply(held("a", 8));
        assert!(jobs.peek(&key("a")).is_none());
    }

    #[test]
    fn a_job_that_is_gone_is_told_of_once_by_its_uid_also_where_another_one_has_its_name() {
        let (jobs, mut heard) = jobs();
        let gone = |heard: &mut UnboundedReceiver<WatchEvent>| {
            let told = std::iter::from_fn(|| heard.try_recv().ok());
            let uid = |event| if let WatchEvent::JobGone(job) = event { Some((job.key, job.uid)) } else { None };
            told.filter_map(uid).collect::<Vec<_>>()
        };
        jobs.changed(held("a", 5));
        assert_eq!(gone(&mut heard), []);
        let mut anew = document("a", 9);
        anew["metadata"]["uid"] = json!("anew");
        // Its own end is heard later than that.
        jobs.confirm(&key("a"), read_job(&anew));
        assert_eq!(gone(&mut heard), [(key("a"), "a".to_owned())]);
        jobs.remove(&held("a", 8));
        assert_eq!((gone(&mut heard), jobs.uid(&key("a"))), (vec![], Some("anew".to_owned())));
        jobs.listed(vec![], 10);
        assert_eq!(gone(&mut heard), [(key("a"), "anew".to_owned())]);
    }

    #[test]
    fn parameters_without_end_are_not_held_and_their_owner_is_told() {
        let mut large = document("a", 5);
        large["spec"]["parameters"] = json!({"a": vec![0; 10_000]});
        let held = read_job(&large).unwrap();
        assert_eq!((held.job.spec.as_ref(), held.bytes), (None, 0));
        assert_eq!(
            held.job.unread.as_ref().map(|why| why.message.as_str()),
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
        let held = read_job(&large).unwrap();
        let metadata = &held.job.metadata;
        assert_eq!((&metadata.labels, &metadata.annotations, &metadata.owner_references), (&None, &None, &None));
        assert_eq!(metadata.finalizers.as_ref().map(Vec::len), Some(1));
        assert!(held.bytes < 1_024, "{}", held.bytes);
        large["metadata"]["finalizers"] = vec!["a/b"; 1_000].into();
        let held = read_job(&large).unwrap();
        assert_eq!((&held.job.spec, &held.job.metadata.finalizers), (&None, &None));
        assert!(held.job.unread.as_ref().unwrap().message.contains("metadata.finalizers: at most"));
    }

    #[test]
    fn the_jobs_of_a_namespace_take_no_more_than_its_share_and_room_comes_back() {
        let (jobs, _heard) = jobs();
        let large = |name: &str, version: u64| Held { bytes: OF_NAMESPACE / 2 + 1, ..held(name, version) };
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
        jobs.changed(Held { bytes: OF_NAMESPACE + 1, ..held("a", 8) });
        assert!(has_spec("a"), "its status has grown, and it is under way");
        jobs.remove(&held("a", 9));
        jobs.changed(large("b", 10));
        assert!(has_spec("b"), "there is room now");
        let mut listed = NamespaceShares::default();
        let fits = |held: Held, listed: &mut NamespaceShares| held.within(listed, 0).job.spec.is_some();
        assert!(fits(large("c", 1), &mut listed) && !fits(large("e", 2), &mut listed));
    }

    #[test]
    fn a_list_drops_the_jobs_that_it_lacks() {
        let (jobs, _heard) = jobs();
        jobs.changed(held("a", 5));
        jobs.listed(vec![held("b", 6)], 7);
        assert_eq!(jobs.keys(), [key("b")]);
    }
}
