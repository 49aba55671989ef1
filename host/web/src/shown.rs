//! The objects that the pages show: the mirror of the cluster, with one small row for each object.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::action_plugin::status::ActionPluginStatus;
use oarlock_core::object::own::OPS_NAMESPACE;
use oarlock_core::ops_job::published::PublishedPlugin;
use oarlock_kube::watch::mirror::{Changed, Mirror, MirroredKind, MirroredObject};
use oarlock_page::{
    FlowPage, JobPage, ListedJob, ListedPlugin, LogAddress, ObjectAddress, ObjectKind, PageAddress, PageContent,
    PageRefusal, PartQuery, PluginObject, ShownEvent, flow_content, job_content, list_content, plugins_content,
    refusal_content, target_content,
};
use oarlock_rest::HostOf;
use oarlock_view::{FlowView, JobView};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::sight::{Details, ListScope, Sight};

const JOBS: MirroredKind = of_spec("apps.kusionstack.io/v1alpha1", "OperationJob");
const FLOWS: MirroredKind = of_spec("api.practice.com/v1alpha1", "JobFlow");
const DAEMONS: MirroredKind = of_spec("api.practice.com/v1alpha1", "DaemonJob");
const OPS: MirroredKind = of_spec("oarlock.dev/v1alpha1", "OpsJob");
const JOB_RECORDS: MirroredKind = MirroredKind {
    api_version: "oarlock.dev/v1alpha1",
    kind: "OperationRecord",
    fields: &["/job", "/shard", "/firstIndex", "/epoch", "/targets"],
    owner: "/job/uid",
    selector: "",
};
const FLOW_RECORDS: MirroredKind = MirroredKind {
    api_version: "oarlock.dev/v1alpha1",
    kind: "JobRecord",
    fields: &["/shard", "/units"],
    owner: "/metadata/ownerReferences/0/uid",
    selector: "",
};
const ACTION_PLUGINS: MirroredKind = MirroredKind {
    api_version: "oarlock.dev/v1alpha1",
    kind: "ActionPlugin",
    fields: &["/status"],
    owner: "",
    selector: "",
};
const JOB_EVENTS: MirroredKind = events("involvedObject.kind=OperationJob");
const FLOW_EVENTS: MirroredKind = events("involvedObject.kind=JobFlow");
const DAEMON_EVENTS: MirroredKind = events("involvedObject.kind=DaemonJob");
const OPS_EVENTS: MirroredKind = events("involvedObject.kind=OpsJob");

/// The kinds that the pages show, and those with their details.
pub static KINDS: [MirroredKind; 11] = [
    JOBS,
    FLOWS,
    DAEMONS,
    OPS,
    JOB_RECORDS,
    FLOW_RECORDS,
    ACTION_PLUGINS,
    JOB_EVENTS,
    FLOW_EVENTS,
    DAEMON_EVENTS,
    OPS_EVENTS,
];

/// The time after which a list is rendered anew although no object changed, because it also depends on the time.
const LISTED_AGAIN: Duration = Duration::from_secs(60);

const fn of_spec(api_version: &'static str, kind: &'static str) -> MirroredKind {
    MirroredKind { api_version, kind, fields: &["/spec", "/status"], owner: "", selector: "" }
}

const fn events(selector: &'static str) -> MirroredKind {
    MirroredKind {
        api_version: "v1",
        kind: "Event",
        fields: &[
            "/involvedObject/uid",
            "/type",
            "/reason",
            "/message",
            "/eventTime",
            "/lastTimestamp",
            "/count",
            "/series",
        ],
        owner: "/involvedObject/uid",
        selector,
    }
}

/// Returns the kinds of an object, and of its events.
fn mirrored(kind: ObjectKind) -> (MirroredKind, MirroredKind) {
    match kind {
        ObjectKind::OperationJob => (JOBS, JOB_EVENTS),
        ObjectKind::JobFlow => (FLOWS, FLOW_EVENTS),
        ObjectKind::DaemonJob => (DAEMONS, DAEMON_EVENTS),
        ObjectKind::OpsJob => (OPS, OPS_EVENTS),
    }
}

/// The objects of which something changed.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    objects: BTreeSet<String>,
    /// True if a list may show something else.
    has_lists: bool,
    /// True if another kind has been listed, so that objects of it may not exist after all.
    has_kinds: bool,
}

/// The rows by the addresses of their objects.
#[derive(Default)]
struct Rows {
    rows: BTreeMap<String, ShownRow>,
    /// The addresses by UID.
    by_uid: HashMap<String, String>,
}

struct ShownRow {
    uid: String,
    listed: ListedJob,
}

/// The objects that the pages show.
pub(crate) struct Shown {
    mirror: Mirror,
    host: Arc<HostOf>,
    /// True if pages offer the logs of failed Jobs.
    has_logs: bool,
    rows: RwLock<Rows>,
    /// The plugins with an ActionPlugin, by name.
    plugins: RwLock<BTreeMap<String, ListedPlugin>>,
    rendered: Mutex<LastRendered>,
}

/// The state at the last call of [`Shown::take_changes`].
#[derive(Default)]
struct LastRendered {
    /// The last time at which the lists were rendered.
    lists: Option<Instant>,
    /// The kinds that the mirror had listed.
    kinds: Vec<ObjectKind>,
}

impl Shown {
    pub(crate) fn new(mirror: Mirror, host: Arc<HostOf>, has_logs: bool) -> Self {
        let (rows, plugins, rendered) = (RwLock::default(), RwLock::default(), Mutex::default());
        Self { mirror, host, has_logs, rows, plugins, rendered }
    }

    /// Waits until an object may have changed.
    pub(crate) async fn changed(&self) {
        self.mirror.changed().await;
    }

    /// Brings the rows up to date. Returns the objects that changed since the last call.
    pub(crate) fn take_changes(&self) -> Touched {
        let changes = self.mirror.take_changed();
        let mut touched = Touched::default();
        for change in changes {
            self.take(&change, &mut touched);
        }
        let mut last = self.rendered.lock();
        let kinds: Vec<ObjectKind> = ObjectKind::ALL.into_iter().filter(|kind| self.is_listed(*kind)).collect();
        touched.has_kinds = kinds != last.kinds;
        last.kinds = kinds;
        touched.has_lists |= touched.has_kinds || last.lists.is_none_or(|since| since.elapsed() >= LISTED_AGAIN);
        if touched.has_lists {
            last.lists = Some(Instant::now());
        }
        touched
    }

    fn is_listed(&self, kind: ObjectKind) -> bool {
        self.mirror.is_listed(&mirrored(kind).0)
    }

    fn take(&self, change: &Changed, touched: &mut Touched) {
        if *change.of == ACTION_PLUGINS {
            let mut plugins = self.plugins.write();
            let name = change.key.name.clone();
            return match change.object.as_ref().and_then(|object| listed_plugin(object)) {
                Some(plugin) => drop(plugins.insert(name, plugin)),
                None => drop(plugins.remove(&name)),
            };
        }
        let kind = ObjectKind::ALL.into_iter().find(|kind| mirrored(*kind).0 == *change.of);
        let Some(kind) = kind else {
            // The object has details of another one.
            let owner = change.object.as_ref().and_then(|object| object.owner().map(str::to_owned));
            let rows = self.rows.read();
            touched.objects.extend(owner.and_then(|uid| rows.by_uid.get(&uid)).cloned());
            return;
        };
        let namespace = change.key.namespace.clone().unwrap_or_default();
        let address = ObjectAddress { kind, namespace, name: change.key.name.clone() };
        if kind == ObjectKind::OperationJob && address.namespace == OPS_NAMESPACE {
            let owner =
                ObjectAddress { kind: ObjectKind::OpsJob, namespace: String::new(), name: address.name.clone() };
            touched.objects.insert(owner.to_string());
        }
        let place = address.to_string();
        let row = change.object.as_ref();
        let row = row.map(|object| ShownRow { listed: row_of(kind, object), uid: object.uid().to_owned() });
        let mut rows = self.rows.write();
        let before = rows.rows.remove(&place);
        if let Some(before) = &before {
            rows.by_uid.remove(&before.uid);
        }
        touched.has_lists |= row.as_ref().map(|row| &row.listed) != before.as_ref().map(|before| &before.listed);
        if let Some(row) = row {
            rows.by_uid.insert(row.uid.clone(), place.clone());
            rows.rows.insert(place.clone(), row);
        }
        touched.objects.insert(place);
    }

    /// Returns true if a page may show something else than before.
    pub(crate) fn concerns(&self, address: &PageAddress, touched: &Touched) -> bool {
        match address {
            PageAddress::Jobs(_) => touched.has_lists,
            PageAddress::Object(object, _) | PageAddress::Target(object, _) => {
                touched.has_kinds || touched.objects.contains(&object.to_string())
            }
            PageAddress::Plugins => true,
        }
    }

    /// Returns the page of an address, as far as this sight goes.
    pub(crate) fn content(&self, address: &PageAddress, sight: &Sight) -> PageContent {
        match address {
            PageAddress::Jobs(query) => {
                let rows = self.rows.read();
                let listed = rows.rows.values().map(|row| &row.listed);
                let mut seen = listed.filter(|row| is_seen(row, sight)).peekable();
                let mut asked = ObjectKind::ALL.into_iter().filter(|kind| query.kind.is_none_or(|own| own == *kind));
                match asked.find(|kind| !self.is_listed(*kind)) {
                    // A list of nothing would say that there is nothing.
                    Some(kind) if seen.peek().is_none() => refusal_content(PageRefusal::Unlisted(kind)),
                    _ => list_content(seen, query, Timestamp::now()),
                }
            }
            PageAddress::Object(object, parts) => self.object(object, sight, Part::Table(parts)),
            PageAddress::Target(object, index) => self.object(object, sight, Part::Target(*index)),
            PageAddress::Plugins => plugins_content(&self.plugins()),
        }
    }

    fn object(&self, address: &ObjectAddress, sight: &Sight, part: Part<'_>) -> PageContent {
        let missing = || match self.is_listed(address.kind) {
            true => refusal_content(PageRefusal::NotFound(format!("{} {}", address.kind.word(), address.name))),
            false => refusal_content(PageRefusal::Unlisted(address.kind)),
        };
        let (of, of_events) = mirrored(address.kind);
        let Some(object) = self.mirror.get(&of, &address.namespace, &address.name) else { return missing() };
        let document = match document(&object, address.kind) {
            Ok(document) => document,
            Err(why) => return refusal_content(PageRefusal::Unreadable(why)),
        };
        let Details { records: has_details, events: has_events } = sight.details();
        let events = if has_events { self.events(&of_events, object.uid()) } else { Vec::new() };
        let job = match address.kind {
            ObjectKind::OperationJob => self.job(document, &object, has_details),
            ObjectKind::OpsJob => Ok(self.ops(&document, &object, has_details)),
            ObjectKind::JobFlow | ObjectKind::DaemonJob => {
                let flow = self.flow(&document, &object, has_details);
                let whole = PartQuery::default();
                let parts = if let Part::Table(parts) = part { parts } else { &whole };
                return flow_content(&FlowPage { flow: &flow, events: &events, parts, has_logs: self.has_logs });
            }
        };
        match (job, part) {
            (Err(why), _) => refusal_content(PageRefusal::Unreadable(why)),
            (Ok(job), Part::Table(parts)) => {
                job_content(&JobPage { job: &job, events: &events, parts, now: Timestamp::now() })
            }
            (Ok(job), Part::Target(index)) => target_content(&job, index, &events),
        }
    }

    fn job(&self, document: Value, object: &MirroredObject, has_details: bool) -> Result<JobView, String> {
        let job: OperationJob = serde_json::from_value(document).map_err(|error| error.to_string())?;
        let records = if has_details { self.owned(&JOB_RECORDS, object) } else { Vec::new() };
        let records: Vec<OperationRecord> =
            records.into_iter().filter_map(|record| serde_json::from_value(record).ok()).collect();
        Ok(JobView::new(&job, &records))
    }

    fn flow(&self, document: &Value, object: &MirroredObject, has_details: bool) -> FlowView {
        let records = if has_details { self.owned(&FLOW_RECORDS, object) } else { Vec::new() };
        FlowView::new(document, &records)
    }

    /// Returns true if a step or node failed with this Job, as far as this sight goes.
    pub(crate) fn has_failed_job(&self, address: &LogAddress, sight: &Sight) -> bool {
        let LogAddress { object: ObjectAddress { kind, namespace, name }, job } = address;
        let object = self.mirror.get(&mirrored(*kind).0, namespace, name);
        object.is_some_and(|object| {
            let flow = document(&object, *kind).map(|document| self.flow(&document, &object, sight.details().records));
            flow.is_ok_and(|flow| flow.units().iter().any(|unit| unit.has_log() && unit.job == *job))
        })
    }

    fn ops(&self, document: &Value, object: &MirroredObject, has_details: bool) -> JobView {
        let child = self.mirror.get(&JOBS, OPS_NAMESPACE, object.name()).filter(|_| has_details);
        let child: Option<OperationJob> = child.and_then(|child| serde_json::from_value(child.document().ok()?).ok());
        let is_own = |child: &OperationJob| {
            let mut owners = child.metadata.owner_references.iter().flatten();
            owners.any(|owner| owner.uid == object.uid())
        };
        JobView::of_ops(document, child.filter(is_own).as_ref())
    }

    /// Returns the objects of an owner in its own namespace. Anybody may write the UID of an owner.
    fn owned(&self, of: &MirroredKind, owner: &MirroredObject) -> Vec<Value> {
        let owned = self.mirror.owned_by(of, owner.uid());
        let own = owned.iter().filter(|object| object.namespace() == owner.namespace());
        own.filter_map(|object| object.document().ok()).collect()
    }

    /// Returns the events of the object with this UID, the newest first.
    fn events(&self, of: &MirroredKind, uid: &str) -> Vec<ShownEvent> {
        let objects = self.mirror.owned_by(of, uid);
        newest_first(objects.iter().filter_map(|object| object.document().ok()))
    }

    /// Returns the plugins with an ActionPlugin. In a cluster without ActionPlugins, returns those that the leader publishes.
    fn plugins(&self) -> Vec<ListedPlugin> {
        let plugins = self.plugins.read();
        if !plugins.is_empty() {
            return plugins.values().cloned().collect();
        }
        let Ok(host) = (self.host)() else { return Vec::new() };
        let listed = |plugin: PublishedPlugin| {
            let PublishedPlugin { name, action, version, digest, problem } = plugin;
            ListedPlugin { name, action, version, digest, problem, object: None }
        };
        host.plugins.iter().cloned().map(listed).collect()
    }
}

/// Returns the plugin of an ActionPlugin whose status the host has written.
fn listed_plugin(object: &MirroredObject) -> Option<ListedPlugin> {
    let document = object.document().ok()?;
    let status: ActionPluginStatus = serde_json::from_value(document.get("status")?.clone()).ok()?;
    let ActionPluginStatus { state, reason, message, action, version, digest, rights, missing, versions, .. } = status;
    let host_may_not = status.conditions.into_iter().find(|one| one.kind == "HostMayNot" && one.status == "True");
    let last_swap = status.last_swap.map(|swap| {
        format!("Since {} version {} serves instead of {} ({}).", swap.time, swap.to, swap.from, swap.reason)
    });
    let shown = versions.iter().find(|one| one.digest == digest);
    let peaks = shown.map(|one| one.peak_use.clone().into_iter().collect()).unwrap_or_default();
    let problem = if state == "Serving" { String::new() } else { format!("{state}: {reason}: {message}") };
    Some(ListedPlugin {
        name: object.name().to_owned(),
        action,
        version,
        digest,
        problem,
        object: Some(PluginObject {
            rights,
            missing,
            host_may_not: host_may_not.map(|one| one.message).unwrap_or_default(),
            jobs: versions.into_iter().map(|one| (one.version, one.jobs)).collect(),
            peaks,
            last_swap: last_swap.unwrap_or_default(),
        }),
    })
}

/// The part of an object that a page shows.
#[derive(Clone, Copy)]
enum Part<'a> {
    Table(&'a PartQuery),
    Target(usize),
}

/// Returns true if a viewer with this sight may see a row.
fn is_seen(row: &ListedJob, sight: &Sight) -> bool {
    let ObjectAddress { kind, namespace, .. } = row.object();
    match sight {
        Sight::List(seen) => match seen.get(kind) {
            Some(ListScope::Cluster) => true,
            Some(ListScope::Namespaces(all)) => all.contains(namespace),
            None => false,
        },
        Sight::Object(_) => false,
        Sight::Whole => true,
    }
}

/// Returns the row of an object. An object that cannot be read has a row with its name.
fn row_of(kind: ObjectKind, object: &MirroredObject) -> ListedJob {
    let document = document(object, kind).unwrap_or_else(|_| {
        json!({"kind": kind.word(), "metadata": {"namespace": object.namespace(), "name": object.name(), "uid": object.uid()}})
    });
    match kind {
        ObjectKind::OperationJob => {
            ListedJob::of_job(&JobView::new(&serde_json::from_value(document).unwrap_or_default(), &[]))
        }
        ObjectKind::OpsJob => ListedJob::of_job(&JobView::of_ops(&document, None)),
        ObjectKind::JobFlow | ObjectKind::DaemonJob => ListedJob::of_flow(&FlowView::new(&document, [])),
    }
}

/// Returns the document of an object with its kind, which the items of a list do not have.
fn document(object: &MirroredObject, kind: ObjectKind) -> Result<Value, String> {
    let mut document = object.document()?;
    if let Some(fields) = document.as_object_mut() {
        fields.insert("kind".to_owned(), json!(kind.word()));
    }
    Ok(document)
}

/// Returns events of core/v1 as a page shows them. Their times are whole seconds, so the newer version is the newer event of a second.
fn newest_first(documents: impl Iterator<Item = Value>) -> Vec<ShownEvent> {
    let version = |document: &Value| {
        let version = document.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        version.and_then(|version| version.parse::<u64>().ok())
    };
    let mut events: Vec<(Option<u64>, ShownEvent)> =
        documents.map(|document| (version(&document), event(&document))).collect();
    events.sort_by_key(|(version, event)| std::cmp::Reverse((event.time, *version)));
    events.into_iter().map(|(_, event)| event).collect()
}

/// Returns an event of core/v1 as a page shows it.
fn event(document: &Value) -> ShownEvent {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let time = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime"];
    let count = ["/series/count", "/count"].iter().find_map(|pointer| document.pointer(pointer)?.as_u64());
    ShownEvent {
        time: time.iter().find_map(|pointer| text(pointer).parse().ok()),
        is_warning: text("/type") == "Warning",
        reason: text("/reason").to_owned(),
        message: text("/message").to_owned(),
        count: count.and_then(|count| count.try_into().ok()).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use oarlock_core::ops_job::published::Unpublished;
    use oarlock_kube::{Cluster, Setup};
    use oarlock_page::JobQuery;

    use super::*;

    /// Returns the objects of a cluster that serves no kind but OperationJob, of which it has none. Its API server may never answer.
    fn shown(answers: bool) -> Shown {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            if !answers || is_watch {
                std::future::pending::<()>().await;
            }
            let list = json!({"kind": "OperationJobList", "apiVersion": JOBS.api_version, "metadata": {"resourceVersion": "1"}, "items": []});
            let not_found =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
            let is_list = request.uri().path().ends_with("/operationjobs");
            let (code, body) = if is_list { (200, list) } else { (404, not_found) };
            Response::builder().status(code).body(Body::from(body.to_string().into_bytes()))
        });
        let setup = Setup {
            client: kube::Client::new(service, "default"),
            clock: Arc::new(Timestamp::now),
            identity: "test".to_owned(),
        };
        let (cluster, _) = Cluster::open(setup);
        let host: HostOf = Box::new(|| Err(Unpublished::Missing));
        Shown::new(Mirror::watch(&cluster, &KINDS), Arc::new(host), false)
    }

    fn pages() -> [PageAddress; 2] {
        let object = ObjectAddress { kind: ObjectKind::JobFlow, namespace: "team".to_owned(), name: "web".to_owned() };
        [PageAddress::Object(object, PartQuery::default()), PageAddress::Jobs(JobQuery::default())]
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_not_found_only_once_its_kind_has_been_listed() {
        let (silent, answering) = (shown(false), shown(true));
        silent.take_changes();
        let listed = async {
            while !ObjectKind::ALL.into_iter().all(|kind| answering.is_listed(kind)) {
                tokio::time::sleep(LISTED_AGAIN).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(3_600), listed).await.unwrap();
        let touched = answering.take_changes();
        for page in pages() {
            let content = silent.content(&page, &Sight::Whole);
            assert!(matches!(content.refusal(), Some(PageRefusal::Unlisted(_))), "{page}: {content:?}");
            assert!(answering.concerns(&page, &touched), "{page} is rendered again");
        }
        let [object, list] = pages().map(|page| answering.content(&page, &Sight::Whole));
        assert!(matches!(object.refusal(), Some(PageRefusal::NotFound(_))), "{object:?}");
        assert_eq!(list.refusal(), None);
    }

    #[test]
    fn the_later_event_of_a_second_comes_first() {
        let one = |reason: &str, version: &str, second: &str| json!({"reason": reason, "lastTimestamp": format!("2026-07-01T10:00:{second}Z"), "metadata": {"resourceVersion": version}});
        let events = [one("Created", "9", "01"), one("Started", "10", "01"), one("Seen", "11", "00")];
        let reasons: Vec<String> = newest_first(events.into_iter()).into_iter().map(|event| event.reason).collect();
        assert_eq!(reasons, ["Started", "Created", "Seen"]);
    }
}
