//! A Kubernetes object as the host keeps it: identity, metadata and the few fields that plugins declared.
//!
//! The host drops all other fields before it stores the object, because they make up most of a pod.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_contract::marks::{HELD, HOLD, IS_HELD};
pub use oarlock_contract::object_key::{IN_MEMORY, Kind, ObjectKey, Owner};
use oarlock_contract::reads::LAST_APPLIED;
pub use oarlock_contract::reads::METADATA;
use serde_json::{Map, Value};

pub use crate::object::compact::{Fields, Strings};
use crate::object::hold_keys::{HoldKeys, HoldOf};
use crate::object::node::NodeSpec;
use crate::object::task_pod::{MIRROR, TaskPod};

/// One object at one resourceVersion.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// Kind, namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.labels`.
    pub labels: Strings,
    /// `metadata.annotations`, without kubectl's last-applied annotation and without the annotations in `stray_holds`.
    pub annotations: Strings,
    /// Keys of pod annotations that look like holds but that no key of the host proves. Anyone who may write the pod may have added them.
    pub stray_holds: Box<[String]>,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// `metadata.ownerReferences`.
    pub owners: Vec<Owner>,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// `metadata.deletionTimestamp`.
    pub deleted: Option<Timestamp>,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace_seconds: Option<i64>,
    /// True if the object can do its work: a Ready pod, or a Ready node that is not cordoned. Objects of other kinds are always available.
    pub available: bool,
    /// Cordon and taints of a node.
    pub node: Option<Box<NodeSpec>>,
    /// State of a pod that does a task.
    pub task: Option<Box<TaskPod>>,
    /// The declared fields, at their paths in the document.
    pub fields: Fields,
    /// How much of the object is kept. The host makes no new changes to an object that is not whole.
    pub kept: Kept,
}

/// How much of an object the host keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// The host keeps everything that it keeps of any object.
    Whole,
    /// The host keeps less, because the object is larger than the limit for one object.
    TooLarge,
    /// The host keeps less, because other objects have used up the memory of its namespace or of the host.
    NoRoom,
}

/// The fields that the host itself reads. These fields tell whether an object is available, and which changes on a node the host may undo.
pub const HOST_FIELDS: [&str; 3] = ["/status/conditions", "/spec/unschedulable", "/spec/taints"];

/// The field of a document that the host did not read whole. It holds the message for the object's owner. No stored object has this field: the reader
/// removes it.
pub const UNREAD: &str = "oarlock.dev/unread";
/// The field of a document of which the host read little more than its identity. Its value is `true`. No stored object has this field.
pub const BARE: &str = "oarlock.dev/bare";

/// Returns why the host did not read a document whole, as a message for the object's owner. The document takes more memory than the host gives one
/// object, or its nesting is too deep.
pub fn unread(document: &Value) -> Option<&str> {
    document.get(UNREAD).and_then(Value::as_str)
}

/// Returns true for the kinds of targets, pods and nodes. An annotation on another object is never a hold.
pub fn may_be_held(kind: &Kind) -> bool {
    matches!((kind.api_version.as_str(), kind.kind.as_str()), ("v1", "Pod" | "Node"))
}

impl Object {
    /// Returns the object in `document`, with only the fields at `pointers` (RFC 6901, such as `/status/conditions`). `fallback` is the kind of an
    /// item of a list, whose document names no kind. Returns `None` if the document lacks a name or a UID, which no stored object does.
    pub fn slim(document: &Value, fallback: &Kind, pointers: &[String]) -> Option<Self> {
        Self::read(document, fallback, pointers, &HoldKeys::default())
    }

    /// Returns the object in `document` as [`Object::slim`] does. `keys` prove which holds of a pod are the host's.
    pub fn read(document: &Value, fallback: &Kind, pointers: &[String], keys: &HoldKeys) -> Option<Self> {
        let meta = document.get("metadata")?;
        let text = |field: &str| meta.get(field).and_then(Value::as_str).map(str::to_owned);
        let kind = kind_of(document, fallback);
        let is_read = unread(document).is_none();
        let labels: Vec<(&str, &str)> = strings(meta.get("labels")).collect();
        let place = |field: &str| meta.get(field).and_then(Value::as_str).unwrap_or_default();
        let (namespace, uid) = (place("namespace"), place("uid"));
        let is_stray = |key: &str, text: &str| {
            let Some(job) = key.strip_prefix(HOLD).filter(|_| kind == Kind::pod()) else { return false };
            if keys.is_empty() {
                return !labels.contains(&(HELD, IS_HELD));
            }
            !keys.proves(HoldOf { job, namespace, pod: uid }, text)
        };
        let annotations = strings(meta.get("annotations")).filter(|(key, _)| *key != LAST_APPLIED);
        let (strays, annotations): (Vec<_>, Vec<_>) = annotations.partition(|(key, text)| is_stray(key, text));
        let finalizers: Vec<&str> = list(meta.get("finalizers")).filter_map(Value::as_str).collect();
        let fields = Fields::from(select(document, pointers));
        let whole = is_read
            && bytes(&labels).max(bytes(&annotations)).max(fields.bytes()) <= MOST_KEPT
            && strays.len().max(finalizers.len()) <= MOST_REFERENCES;
        let object = Self {
            available: is_available(document, &kind),
            task: (kind == Kind::pod()).then(|| TaskPod::read(document)).flatten().map(Box::new),
            // Without the taints, the host does not know which marks are on the node.
            node: (kind == Kind::node() && document.get(BARE).is_none()).then(|| Box::new(NodeSpec::read(document))),
            key: ObjectKey { kind, namespace: text("namespace"), name: text("name")? },
            uid: text("uid")?,
            resource_version: text("resourceVersion").unwrap_or_default(),
            labels: labels.into_iter().collect(),
            annotations: annotations.into_iter().collect(),
            stray_holds: strays.into_iter().map(|(key, _)| key.to_owned()).take(MOST_REFERENCES).collect(),
            finalizers: finalizers.into_iter().map(str::to_owned).take(MOST_REFERENCES).collect(),
            owners: owners(meta.get("ownerReferences")),
            created: time(meta.get("creationTimestamp")),
            deleted: time(meta.get("deletionTimestamp")),
            grace_seconds: meta.get("deletionGracePeriodSeconds").and_then(Value::as_i64),
            fields,
            kept: Kept::Whole,
        };
        Some(if whole { object } else { object.cut(Kept::TooLarge) })
    }

    /// Returns the namespace whose memory share the object counts against. Objects without a namespace share one. Mirror pods share another, because
    /// kubelets make them in any namespace.
    pub fn share(&self) -> &str {
        if self.annotations.contains_key(MIRROR) {
            return OF_KUBELETS;
        }
        self.key.namespace.as_deref().unwrap_or_default()
    }

    /// Returns the bytes of the object beyond the fixed size that every object has.
    pub fn extra_bytes(&self) -> usize {
        if self.kept == Kept::NoRoom {
            return 0;
        }
        let texts = self.labels.bytes() + self.annotations.bytes() + self.fields.bytes();
        let names = self.finalizers.iter().chain(&self.stray_holds).map(|name| size_of::<String>() + name.len());
        let owners = self.owners.iter().map(|owner| size_of::<Owner>() + owner_length(owner));
        let all: usize = texts.saturating_add(names.chain(owners).sum());
        if all <= FREE || !may_be_held(&self.key.kind) {
            return all.saturating_sub(FREE);
        }
        // The host's own holds must not push an object over its share.
        let holds = self.annotations.iter().filter(|(key, _)| key.starts_with(HOLD));
        all.saturating_sub(holds.map(|(key, value)| length(key, value)).sum()).saturating_sub(FREE)
    }

    /// Returns the part of the object that the host keeps if the object is too large or has no room. Without room, the part is smaller.
    #[must_use]
    pub fn cut(mut self, kept: Kept) -> Self {
        let is_held = may_be_held(&self.key.kind);
        let most = if kept == Kept::NoRoom { MOST_WITHOUT_ROOM } else { MOST_STRINGS };
        let [labels, annotations] = [&self.labels, &self.annotations].map(|all| bounded(all, is_held, most));
        let mut room = most / 2;
        self.owners.retain(|owner| owner.controller || fits(&mut room, owner_length(owner)));
        self.stray_holds = self.stray_holds.into_iter().filter(|name| fits(&mut room, name.len())).collect();
        // The host writes finalizers as a whole list, so it must not keep a part of the list. If the list is empty, the host writes no finalizers.
        if self.finalizers.iter().map(String::len).sum::<usize>() > most {
            self.finalizers = Vec::new();
        }
        Self { labels, annotations, fields: self.fields.short(most / 2), kept, ..self }
    }

    /// Returns true if the host keeps the whole object.
    pub fn is_whole(&self) -> bool {
        self.kept == Kept::Whole
    }

    /// Returns the controller among the owners.
    pub fn controller(&self) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.controller)
    }

    /// Returns true if the object has a deletionTimestamp.
    pub fn terminating(&self) -> bool {
        self.deleted.is_some()
    }

    /// Returns the time of the request to delete a terminating object: its deletionTimestamp less its grace period.
    ///
    /// Returns `None` if no grace period is left. The kubelet's last request shortens it to zero and moves the timestamp to the end of the object,
    /// and by then the new pod exists. Also returns `None` if the result is before the creation of the object: the API server does not bound grace
    /// periods, and its sum wraps around.
    pub fn asked_to_go(&self) -> Option<Timestamp> {
        let grace = self.grace_seconds.filter(|seconds| *seconds > 0)?;
        let asked = self.deleted?.checked_sub(SignedDuration::from_secs(grace)).ok()?;
        (Some(asked) >= self.created && asked >= Timestamp::UNIX_EPOCH).then_some(asked)
    }

    /// Returns the resourceVersion as a number, to compare two views of one object. Returns 0 if it is not a number.
    pub fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or(0)
    }

    /// Returns the string at `pointer` among the declared fields.
    pub fn text(&self, pointer: &str) -> Option<String> {
        self.fields.text(pointer)
    }
}

fn is_available(document: &Value, kind: &Kind) -> bool {
    let ready = || {
        let mut conditions = list(document.pointer("/status/conditions"));
        conditions.any(|condition| {
            condition.get("type").is_some_and(|kind| kind == "Ready")
                && condition.get("status").is_some_and(|status| status == "True")
        })
    };
    let cordoned = || document.pointer("/spec/unschedulable").is_some_and(|value| value == true);
    match (kind.api_version.as_str(), kind.kind.as_str()) {
        ("v1", "Pod") => ready(),
        ("v1", "Node") => ready() && !cordoned(),
        _ => true,
    }
}

fn kind_of(document: &Value, fallback: &Kind) -> Kind {
    match (document.get("apiVersion").and_then(Value::as_str), document.get("kind").and_then(Value::as_str)) {
        (Some(api_version), Some(kind)) => Kind::new(api_version, kind),
        _ => fallback.clone(),
    }
}

fn strings(value: Option<&Value>) -> impl Iterator<Item = (&str, &str)> {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// The most bytes of the labels, of the annotations and of the declared fields of an object that is kept whole.
const MOST_KEPT: usize = 256 * 1024;
/// Bytes of an object that count against no namespace's share. Most objects have fewer.
const FREE: usize = 4 * 1024;
/// The most bytes of the labels and of the annotations of an object that is not whole. If there are more, the host keeps the shortest.
const MOST_STRINGS: usize = 8 * 1024;
/// The most bytes of the labels and of the annotations of an object without room. There may be very many such objects.
const MOST_WITHOUT_ROOM: usize = 1024;
/// The most bytes of the holds of an object. Each job that holds the object has one entry.
const MOST_HOLDS: usize = 64 * 1024;
/// The share that mirror pods count against. No namespace has such a name.
const OF_KUBELETS: &str = "/kubelets";
/// The most bytes of an owner reference. Group, version, kind and name of a stored object have at most 253 bytes each, and so has a UID.
const MOST_OWNER: usize = 4 * 253;
/// The most finalizers and owners of an object.
pub const MOST_REFERENCES: usize = 64;

/// Returns the order in which the host keeps labels and annotations. Holds are first: only the host may write them. Labels and annotations that the
/// host or the lifecycle of a set reads come second, all others last.
fn rank(key: &str) -> u8 {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_below =
        |own: &str| domain.strip_suffix(own).is_some_and(|before| before.is_empty() || before.ends_with('.'));
    match key {
        _ if key.starts_with(HOLD) || key == HELD => 0,
        _ if is_below("oarlock.dev") || is_below("kusionstack.io") => 1,
        _ => 2,
    }
}

fn length(key: &str, value: &str) -> usize {
    key.len().saturating_add(value.len())
}

fn bytes(entries: &[(&str, &str)]) -> usize {
    entries.iter().map(|(key, value)| length(key, value)).fold(0, usize::saturating_add)
}

/// Returns the entries that fit: holds into [`MOST_HOLDS`] bytes, all others into `most` bytes. The writer of an object decides how large its entries
/// are.
fn bounded(entries: &Strings, is_held: bool, most: usize) -> Strings {
    let mut entries: Vec<(&str, &str)> = entries.iter().collect();
    entries.sort_by_key(|(key, value)| (rank(key), length(key, value), *key));
    let (mut holds, mut others) = (if is_held { MOST_HOLDS } else { 0 }, most);
    entries.retain(|(key, value)| fits(if rank(key) == 0 { &mut holds } else { &mut others }, length(key, value)));
    entries.into_iter().collect()
}

/// Takes `bytes` from the room. Returns false if fewer bytes are left.
fn fits(room: &mut usize, bytes: usize) -> bool {
    room.checked_sub(bytes).inspect(|left| *room = *left).is_some()
}

fn owner_length(owner: &Owner) -> usize {
    [&owner.kind.api_version, &owner.kind.kind, &owner.name, &owner.uid].iter().map(|text| text.len()).sum()
}

/// Returns at most [`MOST_REFERENCES`] owners, the controller first. An owner reference longer than [`MOST_OWNER`] names no stored object, so it is
/// dropped.
fn owners(value: Option<&Value>) -> Vec<Owner> {
    let mut all: Vec<Owner> = list(value).filter_map(owner).collect();
    if all.len() > MOST_REFERENCES {
        all.sort_by_key(|owner| !owner.controller);
        all.truncate(MOST_REFERENCES);
        all.shrink_to_fit();
    }
    all
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn time(value: Option<&Value>) -> Option<Timestamp> {
    value.and_then(Value::as_str)?.parse().ok()
}

fn owner(value: &Value) -> Option<Owner> {
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    let owner = Owner {
        kind: Kind::new(text("apiVersion")?, text("kind")?),
        name: text("name")?.to_owned(),
        uid: text("uid")?.to_owned(),
        controller: value.get("controller").and_then(Value::as_bool).unwrap_or(false),
    };
    (owner_length(&owner) <= MOST_OWNER).then_some(owner)
}

/// Returns the document with only the parts that `pointers` select. A pointer through an array keeps the whole array, because an index alone would
/// move the selected item.
fn select(document: &Value, pointers: &[String]) -> Value {
    let mut kept = Value::Object(Map::new());
    for pointer in pointers {
        keep(document, &mut kept, pointer);
    }
    kept
}

fn keep(from: &Value, into: &mut Value, pointer: &str) {
    let Some(rest) = pointer.strip_prefix('/') else {
        *into = from.clone();
        return;
    };
    let (token, below) = match rest.find('/') {
        Some(end) => rest.split_at(end),
        None => (rest, ""),
    };
    let token = token.replace("~1", "/").replace("~0", "~");
    let (Some(child), Some(target)) = (from.get(&token), into.as_object_mut()) else { return };
    match child {
        Value::Object(_) if !below.is_empty() => {
            let slot = target.entry(token).or_insert_with(|| Value::Object(Map::new()));
            keep(child, slot, below);
        }
        _ => {
            target.insert(token, child.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_declared_fields_are_kept() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "managedFields": [1],
                "annotations": {LAST_APPLIED: "x", "k": "v"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]}, "status": {"phase": "Running", "conditions": []}});
        let object = Object::slim(&pod, &Kind::pod(), &["/spec/nodeName".into(), "/status/conditions".into()]).unwrap();
        assert_eq!(object.fields.value(), json!({"spec": {"nodeName": "n"}, "status": {"conditions": []}}));
        assert_eq!(object.annotations.len(), 1);
        assert_eq!(object.version(), 7);
    }

    #[test]
    fn a_hold_on_a_pod_counts_only_where_the_pod_is_labelled_as_held() {
        let of = |kind: &Kind, label: &str| {
            let document = json!({"metadata": {"name": "a", "uid": "u", "labels": {HELD: label},
                "annotations": {"hold.oarlock.dev/j": "[]", "k": "v"}}});
            let object = Object::slim(&document, kind, &[]).unwrap();
            let holds = object.annotations.keys().filter(|key| key.starts_with(HOLD)).count();
            (holds, object.annotations.len(), object.stray_holds.len())
        };
        assert_eq!(of(&Kind::pod(), IS_HELD), (1, 2, 0));
        assert_eq!(of(&Kind::pod(), "yes"), (0, 1, 1));
        assert_eq!(of(&Kind::node(), ""), (1, 2, 0), "of nodes, each write is judged");
    }

    #[test]
    fn a_grace_period_of_any_size_names_a_sensible_time_or_none() {
        let asked = |deleted: &str, grace: i64| {
            let document = json!({"metadata": {"name": "a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": deleted, "deletionGracePeriodSeconds": grace}});
            let asked = Object::slim(&document, &Kind::pod(), &[]).unwrap().asked_to_go();
            asked.map(|time| time.to_string())
        };
        assert_eq!(asked("2026-01-01T01:00:30Z", 30).as_deref(), Some("2026-01-01T01:00:00Z"));
        assert_eq!(asked("2057-09-09T02:46:40Z", 1_000_000_000).as_deref(), Some("2026-01-01T01:00:00Z"));
        for grace in [0, -1, i64::MIN, 1_000_000_000_000, i64::MAX] {
            assert_eq!(asked("2148-06-12T01:00:00Z", grace), None, "{grace}");
        }
    }

    #[test]
    fn labels_annotations_and_owners_without_end_are_kept_as_far_as_there_is_room() {
        let many = |count: usize| (0..count).map(|n| (format!("a-{n}"), json!("x".repeat(200)))).collect::<Value>();
        let (mut labels, mut annotations) = (many(1_000), many(1_000));
        labels["oarlock.dev/held"] = json!("true");
        labels["z"] = json!("short");
        annotations["hold.oarlock.dev/job"] = json!("y".repeat(300));
        annotations["long"] = json!("x".repeat(200_000));
        annotations["evil-oarlock.dev/a"] = json!("x".repeat(4_000));
        let owner = |n: usize| json!({"apiVersion": "v1", "kind": "K", "name": "o", "uid": n.to_string(), "controller": n == 900});
        let pod = json!({"metadata": {"name": "a", "uid": "u", "labels": labels, "annotations": annotations,
            "ownerReferences": (0..1_000).map(owner).collect::<Vec<_>>(),
            "finalizers": (0..1_000).map(|n| format!("f/{n}")).collect::<Vec<_>>()}});
        let object = Object::slim(&pod, &Kind::pod(), &[]).unwrap();
        assert!(!object.is_whole());
        for strings in [&object.labels, &object.annotations] {
            let others = strings.iter().filter(|(key, _)| rank(key) > 0);
            let bytes: usize = others.map(|(key, value)| key.len() + value.len()).sum();
            assert!((MOST_STRINGS / 2..=MOST_STRINGS).contains(&bytes), "{bytes}");
        }
        assert!(object.labels.contains_key("oarlock.dev/held") && object.labels.contains_key("z"));
        assert!(object.annotations.contains_key("hold.oarlock.dev/job") && !object.annotations.contains_key("long"));
        assert!(!object.annotations.contains_key("evil-oarlock.dev/a"));
        assert_eq!((object.owners.len(), object.finalizers.len()), (MOST_REFERENCES, MOST_REFERENCES));
        assert_eq!(object.controller().unwrap().uid, "900");
    }

    #[test]
    fn an_object_as_large_as_honest_ones_get_is_kept_whole_and_of_a_larger_one_what_is_short() {
        let of = |length: usize| {
            let text = "x".repeat(length);
            let pod = json!({"metadata": {"name": "a", "uid": "u", "annotations": {"long": text}},
                "spec": {"nodeName": "n", "containers": [{"command": [text]}]}, "status": {"phase": "Running", "text": text}});
            let pointers = ["/spec/nodeName", "/spec/containers", "/status"].map(str::to_owned);
            Object::slim(&pod, &Kind::pod(), &pointers).unwrap()
        };
        let (usual, large, larger) = (of(100), of(100_000), of(200_000));
        assert_eq!((usual.kept, usual.extra_bytes()), (Kept::Whole, 0));
        assert!(large.is_whole() && large.extra_bytes() > 290_000, "{}", large.extra_bytes());
        assert_eq!((larger.kept, larger.extra_bytes()), (Kept::TooLarge, 0));
        for cut in [larger, large.cut(Kept::NoRoom)] {
            assert_eq!(cut.fields.value(), json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}}));
            assert!(cut.annotations.is_empty() && !cut.is_whole());
        }
    }

    #[test]
    fn owners_finalizers_and_strays_count_and_an_owner_of_endless_name_is_nobody() {
        let owner = |uid: &str| json!({"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": uid, "controller": true});
        let of = |metadata: Value| {
            let mut pod = json!({"metadata": {"name": "a", "uid": "u"}});
            pod["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
            Object::slim(&pod, &Kind::pod(), &[]).unwrap()
        };
        assert_eq!(of(json!({"ownerReferences": [owner(&"x".repeat(1_400_000))]})).controller(), None);
        assert!(of(json!({"ownerReferences": [owner("u")]})).controller().is_some());
        let many = of(json!({
            "ownerReferences": (0..60).map(|n| owner(&format!("{}{n}", "x".repeat(800)))).collect::<Vec<_>>(),
            "finalizers": vec!["f/".to_owned() + &"x".repeat(300); 60],
            "annotations": (0..60).map(|n| (format!("hold.oarlock.dev/{n}{}", "x".repeat(40)), json!(""))).collect::<Value>()}));
        assert!(many.is_whole() && many.extra_bytes() > 60_000, "{}", many.extra_bytes());
        let cut = many.cut(Kept::NoRoom);
        assert!(cut.stray_holds.iter().map(String::len).sum::<usize>() <= MOST_STRINGS / 2);
    }

    #[test]
    fn an_object_without_labels_owner_or_fields_is_still_an_object() {
        let object = Object::slim(&json!({"metadata": {"name": "a", "uid": "u"}}), &Kind::pod(), &[]).unwrap();
        assert_eq!((object.controller(), object.terminating()), (None, false));
        assert_eq!(object.key.kind, Kind::pod());
    }
}
