"""A kit to test a plugin with `pytest`: without WebAssembly and without a host.

The kit refuses reads and proposals with the words of the host. It does not limit time and memory.
"""

import copy
import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Optional, Sequence, Union

import oarlock
from oarlock import Action, Failure, Mutation, ObjectRef, Proposal, Relation, Report

NOW = 1_769_860_800_000
"""The default time of a visit: 2026-01-31T12:00:00Z."""
NAMESPACE = "default"
JOB_UID = "uid-of-job"
HOLD = f"hold.oarlock.dev/{JOB_UID}"
HOST_EXTRAS = ("Owner", "Node", "EvictedAt", "Released", "ClaimedUID", "Finished", "Plan", "Drain", "WaitsSince")
METADATA = [
    *("name", "namespace", "uid", "resourceVersion", "labels", "annotations", "finalizers", "ownerReferences"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
]
OWN_FIELDS = ("generateName", "ownerReferences", "uid", "resourceVersion", "finalizers", "managedFields")

Document = dict[str, Any]


class CallFailed(Exception):
    """The reason why a call has no answer: a failure of the plugin, or a refusal of the host such as `MutationDenied`."""

    def __init__(self, reason: str, message: str, retryable: bool = False):
        super().__init__(f"{reason}: {message}")
        self.reason, self.message, self.retryable = reason, message, retryable


class _ReadFailed(Exception):
    """A refused read, as the bindings raise it."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.value = SimpleNamespace(reason=reason, message=message)


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(over, dict):
        return over
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def object(api_version: str, kind: str, namespace: Optional[str], name: str, fields: Optional[Document] = None) -> Document:
    """Returns an object of any kind with the UID `uid-of-<name>` and these fields."""
    metadata: Document = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"}
    if namespace:
        metadata["namespace"] = namespace
    made: Document = _merged({"apiVersion": api_version, "kind": kind, "metadata": metadata}, fields or {})
    return made


def pod(name: str, fields: Optional[Document] = None) -> Document:
    """Returns a Pod in the namespace `default` with these fields."""
    return object("v1", "Pod", NAMESPACE, name, fields)


def node(name: str, fields: Optional[Document] = None) -> Document:
    """Returns a Node with these fields."""
    return object("v1", "Node", None, name, fields)


def _select(document: Any, pointer: str) -> Any:
    if pointer and not pointer.startswith("/"):
        return None
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(token)
        elif isinstance(document, list) and token.isdecimal() and int(token) < len(document):
            document = document[int(token)]
        else:
            return None
    return document


def _text(value: Any) -> Optional[str]:
    return None if value is None else json.dumps(value)


def _ref(document: Document) -> ObjectRef:
    metadata = document["metadata"]
    return ObjectRef(document["apiVersion"], document["kind"], metadata.get("namespace"), metadata["name"], metadata.get("uid"))


def _is_named(document: Document, ref: ObjectRef) -> bool:
    own = _ref(document)
    return replace(own, uid=None) == replace(ref, uid=None) and ref.uid in (None, own.uid)


def _is_of(rule: Document, api_version: str, kind: str) -> bool:
    return (rule["apiVersion"], rule["kind"]) == (api_version, kind)


def _matches(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def _covers(declared: str, pointer: str) -> bool:
    return _matches(declared, pointer) or pointer.startswith(declared + "/")


def _is_label(text: str) -> bool:
    return re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text) is not None


def _is_subdomain(text: str) -> bool:
    return len(text) <= 253 and all(map(_is_label, text.split(".")))


def _is_part(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", text) is not None


def _is_qualified(text: str) -> bool:
    *prefix, name = text.split("/")
    return _is_part(name) and len(prefix) < 2 and all(map(_is_subdomain, prefix))


def _is_host_key(key: str) -> bool:
    return re.match(r"([^/]*\.)?(oarlock\.dev|podopslifecycle\.kusionstack\.io)/", key) is not None


_TYPES: dict[str, tuple[type, ...]] = {"object": (dict,), "array": (list,), "string": (str,), "integer": (int,)}
_TYPES |= {"number": (int, float), "boolean": (bool,), "null": (type(None),)}


def _invalid(schema: Document, value: Any, path: str) -> Optional[str]:
    """Checks a value with the part of JSON Schema that most manifests use."""
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    is_of = any(isinstance(value, _TYPES[one]) and not (isinstance(value, bool) and one in ("integer", "number")) for one in wanted)
    if wanted and not is_of:
        return f'{path}: {json.dumps(value)} is not of type "{", ".join(wanted)}"'
    if "enum" in schema and value not in schema["enum"]:
        return f"{path}: {json.dumps(value)} is not one of {json.dumps(schema['enum'])}"
    if isinstance(value, (int, float)) and value < schema.get("minimum", value):
        return f"{path}: {value} is less than the minimum of {schema['minimum']}"
    if isinstance(value, (int, float)) and value > schema.get("maximum", value):
        return f"{path}: {value} is greater than the maximum of {schema['maximum']}"
    inner: list[Optional[str]] = []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        inner = [f'{path}: "{name}" is a required property' for name in schema.get("required", []) if name not in value]
        for name, one in value.items():
            if name in known:
                inner.append(_invalid(known[name], one, f"{path}/{name}"))
            elif schema.get("additionalProperties") is False:
                inner.append(f"{path}: Additional properties are not allowed ('{name}' was unexpected)")
    if isinstance(value, list) and "items" in schema:
        inner = [_invalid(schema["items"], one, f"{path}/{at}") for at, one in enumerate(value)]
    return next((wrong for wrong in inner if wrong), None)


def manifest() -> Document:
    """Reads `manifest.json` of the plugin, which is beside the folder of the SDK."""
    file = Path(__file__).parent.parent / "manifest.json"
    if not file.exists():
        raise CallFailed("ManifestInvalid", f"there is no {file}")
    read: Document = json.loads(file.read_text())
    return read


class _Denied(Exception):
    """A refusal of a proposal."""


class _Counted:
    """A handle that counts the calls of its functions."""

    def __init__(self, call: "_Call", functions: dict[str, Callable[..., Any]]):
        self._call, self._functions = call, functions

    def __getattr__(self, name: str) -> Any:
        self._call.count()
        return self._functions[name]


class _Call:
    """The handles and functions of one call, from the memory of a test."""

    def __init__(self, visit: "Visit", rules: Document, plugin: Action):
        self.visit, self.rules, self.calls = visit, rules, 0
        self.relations: Sequence[Relation] = plugin.relations
        self.exclusive = plugin.exclusive_extras
        self.read: set[ObjectRef] = set()

    def count(self, more: int = 1) -> None:
        self.calls += more
        most = self.rules.get("limits", {}).get("hostCalls", 10_000)
        if self.calls > most:
            raise Failure("PluginLimitExceeded", f"it called the host more than {most} times", True)

    def declared(self, api_version: str, kind: str) -> list[Document]:
        return [rule for rule in self.rules.get("reads", []) if _is_of(rule, api_version, kind)]

    def fields(self, api_version: str, kind: str) -> list[str]:
        return [name for rule in self.declared(api_version, kind) for name in rule.get("fields", [])]

    def objects(self, live: bool) -> list[Document]:
        if live and self.visit.before_look:
            raise _ReadFailed("Unavailable", "The host looks first, and then repeats the call.")
        return self.visit.live if live else self.visit.watched

    @property
    def target_ref(self) -> ObjectRef:
        if self.visit.object:
            return _ref(self.visit.object)
        kind = self.rules["target"][0]
        return ObjectRef("v1", kind, None if kind == "Node" else NAMESPACE, self.visit.name, None)

    def watches(self, api_version: str, kind: str) -> bool:
        kinds = [(self.target_ref.api_version, self.target_ref.kind), *((one.api_version, one.kind) for one in self.relations)]
        return (api_version, kind) in kinds

    def handle(self, document: Document) -> _Counted:
        ref, metadata = _ref(document), document["metadata"]
        kept = {**document, "metadata": {key: value for key, value in metadata.items() if key in METADATA}}

        def read(pointer: str) -> Optional[str]:
            if not any(_covers(name, pointer) for name in self.fields(ref.api_version, ref.kind)):
                if pointer and not pointer.startswith("/"):
                    return None
                if pointer not in ("/apiVersion", "/kind", "/metadata") and not pointer.startswith("/metadata/"):
                    what = f"field {json.dumps(pointer)} of {ref.api_version} {ref.kind}"
                    raise _ReadFailed("NotDeclared", f"the manifest does not declare {what}; add it to its `reads`")
            return _text(_select(kept, pointer))

        def whole() -> str:
            shown: Document = {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": kept["metadata"]}
            for name in self.fields(ref.api_version, ref.kind):
                *path, last = name.removesuffix("*").rstrip("/")[1:].split("/")
                source, into = document, shown
                for key in path:
                    source, into = source.get(key, {}), into.setdefault(key, {})
                if last in source:
                    into[last] = source[last]
            return json.dumps(shown)

        def deleted() -> Optional[int]:
            at = metadata.get("deletionTimestamp")
            return int(datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp() * 1000) if at else None

        return _Counted(self, {
            "api_version": lambda: ref.api_version, "kind": lambda: ref.kind, "namespace": lambda: ref.namespace, "name": lambda: ref.name,
            "uid": lambda: ref.uid, "resource_version": lambda: metadata["resourceVersion"], "field": read, "json": whole,
            "label": lambda key: metadata.get("labels", {}).get(key), "annotation": lambda key: metadata.get("annotations", {}).get(key),
            "has_finalizer": lambda name: name in metadata.get("finalizers", []), "deletion_time_ms": deleted,
        })  # fmt: skip

    @property
    def job(self) -> _Counted:
        visit = self.visit
        return _Counted(self, {
            "namespace": lambda: NAMESPACE, "name": lambda: "job", "uid": lambda: JOB_UID, "action": lambda: self.rules["action"],
            "now_ms": lambda: visit.now_ms, "parameter": lambda pointer: _text(_select(visit.parameters, pointer)),
            "target_count": lambda: 1, "cancelled": lambda: visit.cancelled,
        })  # fmt: skip

    @property
    def target(self) -> _Counted:
        visit = self.visit
        return _Counted(self, {
            "name": lambda: visit.name, "index": lambda: 0, "kind": lambda: self.target_ref.kind, "uid": lambda: visit.uid,
            "object": lambda: visit.object and self.handle(visit.object), "containers": lambda: visit.containers,
            "extra": visit.extras.get, "extras": lambda: sorted(visit.extras.items()), "attempt": lambda: visit.attempt,
            "call_try": lambda: visit.call_try, "started_ms": lambda: visit.started_ms, "deadline_ms": lambda: visit.deadline_ms,
            "task": visit.tasks.get,
        })  # fmt: skip

    # The functions of the host, as `oarlock.Host` names them.

    def config(self, pointer: str) -> Optional[str]:
        self.count()
        return _text(_select(self.visit.config, pointer))

    def serves(self, api_version: str, kind: str) -> bool:
        self.count()
        if not self.watches(api_version, kind):
            self.objects(True)
        return f"{api_version} {kind}" not in self.visit.unserved

    def get(self, api_version: str, kind: str, namespace: Optional[str], name: str, live: bool) -> Any:
        self.count()
        if not self.declared(api_version, kind):
            raise _ReadFailed("NotDeclared", f"the manifest does not declare reads of {api_version} {kind}; add them to its `reads`")
        if not _is_subdomain(name) or (namespace is not None and not _is_label(namespace)):
            return None
        ref = ObjectRef(api_version, kind, namespace, name)
        found = next((one for one in self.objects(live or not self.watches(api_version, kind)) if _is_named(one, ref)), None)
        self.read.add(ref)
        return found and self.handle(found)

    def related(self, target: Any, relation: str, live: bool) -> Sequence[Any]:
        self.count()
        visit, one = self.visit, next((one for one in self.relations if one.name == relation), None)
        if one is None:
            raise _ReadFailed("NotDeclared", f"`setup` declared no relation {json.dumps(relation)}")
        if one.by == "same-controller" and visit.successors is None:
            raise Failure("KitLacks", f"In this test, relation {relation} needs the objects of the same controller: give `successors`.")
        if one.by == "owner-is-target" and not visit.uid:
            raise Failure("KitLacks", f"In this test, relation {relation} needs the UID of the target: give `uid`.")
        held = [visit.extras[key] for key in self.exclusive if key in visit.extras]

        def belongs(document: Document) -> bool:
            ref, metadata = _ref(document), document["metadata"]
            owners = [owner["uid"] for owner in metadata.get("ownerReferences", [])]
            is_on_node = one.by == "field" and one.value == "/spec/nodeName" and self.target_ref.kind == "Node"
            if (ref.api_version, ref.kind) != (one.api_version, one.kind) or not (is_on_node or ref.namespace == NAMESPACE):
                return False
            if ref.name in visit.claimed and ref.name not in held:
                return False
            rules: dict[str, Callable[[], bool]] = {
                "label": lambda: metadata.get("labels", {}).get(one.value) in (visit.name, *held),
                "extra": lambda: ref.name == visit.extras.get(one.value),
                "field": lambda: _select(document, one.value) == visit.name,
                "parameter": lambda: ref.name == _select(visit.parameters, one.value),
                "owner-is-job": lambda: JOB_UID in owners,
                "owner-is-target": lambda: visit.uid in owners,
                "same-controller": lambda: ref.name in (visit.successors or ()),
            }
            return rules[one.by]()

        found = sorted(filter(belongs, self.objects(live)), key=lambda document: (_ref(document).namespace or "", _ref(document).name))
        self.count(len(found))
        return [self.handle(document) for document in found]

    # Refusals, as the host words them.

    def check_relations(self) -> None:
        for one in self.relations:
            if not self.declared(one.api_version, one.kind):
                raise CallFailed("RegistrationRefused", f"relation {one.name} is about {one.api_version} {one.kind}; add it to `reads` of the manifest")
            if one.by == "field" and not any(_covers(name, one.value) for name in self.fields(one.api_version, one.kind)):
                raise CallFailed("RegistrationRefused", f"relation {one.name} matches by {one.value} of {one.kind}; add it to `reads` of the manifest")

    def check(self, proposal: Proposal) -> None:
        if len(proposal.mutations) > 64:
            raise _Denied(f"{len(proposal.mutations)} mutations in one proposal; at most 64 are taken")
        if len(proposal.events) > 16:
            raise _Denied(f"{len(proposal.events)} events in one proposal; at most 16 are taken")
        for mutation in proposal.mutations:
            self.check_mutation(mutation.case, mutation.fields)
        after = dict(self.visit.extras)
        for key in proposal.remove_extra:
            after.pop(key, None)
        after.update(proposal.set_extra)
        for key in [*proposal.remove_extra, *(key for key, _ in proposal.set_extra)]:
            if key in HOST_EXTRAS or key.startswith("Task/"):
                raise _Denied(f"extra {key} belongs to the host")
            if not re.fullmatch(r"[A-Za-z0-9_./-]{1,63}", key):
                raise _Denied(f"extra {json.dumps(key)}: a key has at most 63 letters, digits, `-`, `_`, `.` and `/`")
        for key, value in proposal.set_extra:
            if re.search(r"[\x00-\x1f\x7f-\x9f]", value):
                raise _Denied(f"extra {key}: its value has control characters")
        own = [(key, value) for key, value in after.items() if key not in HOST_EXTRAS and not key.startswith("Task/")]
        size = sum(len(key.encode()) + len(value.encode()) for key, value in own)
        if size > 1024 and proposal.set_extra:
            raise _Denied(f"the extras of the target would have {size} bytes; at most 1024 are stored")

    def check_mutation(self, case: str, of: Document) -> None:
        if case == "metadata":
            self.check_metadata(of)
        elif case == "create":
            self.check_create(json.loads(of["document"]))
        elif case == "patch":
            self.check_patch(of)
        elif case == "evict":
            if (of["pod"].api_version, of["pod"].kind) != ("v1", "Pod"):
                raise _Denied(f"evict of {of['pod'].kind} {of['pod'].name}: only pods can be evicted")
            self.check_object("evict", of["pod"])
        elif case == "delete":
            self.check_object("delete", of["object"])
        elif case in ("schedulable", "taint", "drain"):
            ref, target = ObjectRef("v1", "Node", None, of["node"]), replace(self.target_ref, uid=None)
            if ref != target:
                raise _Denied(f"{case} of Node {ref.name}: the target is {target.kind} {target.name}")
            self.check_object(case, ref)
            if case == "taint":
                self.check_taint(of["key"], of["effect"])
        elif case == "task":
            if not any(rule["name"] == of["kind"] for rule in self.rules.get("tasks", [])):
                raise _Denied(f"task {of['name']}: {of['kind']}: the manifest of plugin {self.rules['name']} does not ask for it; add it to its `tasks`")
        else:
            raise _Denied(f"this host does not carry out `{of['name']}`")

    def check_taint(self, key: str, effect: str) -> None:
        if not _is_qualified(key):
            raise _Denied(f"taint {json.dumps(key)} is not a qualified name")
        if key.startswith("node.kubernetes.io/"):
            raise _Denied(f"taint {key} belongs to the controllers of nodes")
        if effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise _Denied(f"taint {key}: {json.dumps(effect)} is no effect; it is one of NoSchedule, PreferNoSchedule, NoExecute")

    def asked(self, verb: str, ref: ObjectRef, what: str, test: Callable[[Document], bool] = lambda _: True) -> None:
        rules = [rule for rule in self.rules.get("writes", []) if rule["verb"] == verb and _is_of(rule, ref.api_version, ref.kind)]
        if not any(map(test, rules)):
            raise _Denied(f"{what}: the manifest of plugin {self.rules['name']} does not ask for it; add it to its `writes`")

    def check_object(self, verb: str, ref: ObjectRef) -> None:
        shown, bare, target = f"{ref.kind} {ref.name}", replace(ref, uid=None), self.target_ref
        if not _is_subdomain(ref.name):
            raise _Denied(f"{verb}: {json.dumps(ref.name)} is not the name of an object")
        if ref.api_version.startswith("oarlock.dev/") or ref.kind == "OperationJob":
            raise _Denied(f"{verb} of {shown}: objects of this kind belong to the host")
        self.asked(verb, ref, f"{verb} of {ref.api_version} {ref.kind}")
        if ref.namespace not in (None, NAMESPACE):
            raise _Denied(f"{verb} of {shown}: the job is in namespace {NAMESPACE}")
        if verb == "create":
            return
        if (ref.api_version, ref.kind) == (target.api_version, target.kind):
            if bare != replace(target, uid=None):
                raise _Denied(f"{verb} of {shown}: the target is {target.kind} {target.name}")
            if ref.uid not in (None, self.visit.uid):
                raise _Denied(f"{verb} of {shown}: it has another UID than the target")
            return
        watches = self.watches(ref.api_version, ref.kind)
        if not watches and bare not in self.read:
            raise _Denied(f"{verb} of {shown}: the plugin has not seen it; read it with `get` first")
        found = next((one for one in (self.visit.watched if watches else self.visit.live) if _is_named(one, bare)), None)
        for owner in (found or {"metadata": {}})["metadata"].get("ownerReferences", []):
            if owner["kind"] == "OperationJob" and owner["uid"] != JOB_UID:
                raise _Denied(f"{verb} of {shown}: it belongs to job {owner['name']}")

    def check_metadata(self, of: Document) -> None:
        self.check_object("metadata", of["object"])
        parts = {"label": [*(key for key, _ in of["set_labels"]), *of["remove_labels"]]}
        parts["annotation"] = [*(key for key, _ in of["set_annotations"]), *of["remove_annotations"]]
        parts["finalizer"] = [*of["add_finalizers"], *of["remove_finalizers"]]
        for what, keys in parts.items():
            for key in keys:
                if not _is_qualified(key):
                    raise _Denied(f"{what} {json.dumps(key)} is not a qualified name")
                if _is_host_key(key):
                    raise _Denied(f"{what} {key} belongs to the host")
                named = f"metadata of {of['object'].kind}: {what} {key}"
                self.asked("metadata", of["object"], named, lambda rule: any(_matches(one, key) for one in rule.get(what + "s", [])))
        for key, value in of["set_labels"]:
            if value and not _is_part(value):
                raise _Denied(f"label {key}: {json.dumps(value)} is not a label value")

    def check_create(self, document: Document) -> None:
        if not document.get("apiVersion") or not document.get("kind"):
            raise _Denied("create: the object has no `apiVersion` or no `kind`")
        metadata = document.get("metadata", {})
        if not metadata.get("name"):
            raise _Denied(f"create of {document['kind']}: the object has no name")
        for own in OWN_FIELDS:
            if own in metadata:
                raise _Denied(f"create of {document['kind']}: leave out metadata.{own}")
        self.check_object("create", ObjectRef(document["apiVersion"], document["kind"], metadata.get("namespace"), metadata["name"]))

    def check_patch(self, of: Document) -> None:
        ref, fields = of["object"], json.loads(of["patch"])
        self.check_object("patch", ref)
        if not isinstance(fields, dict):
            raise _Denied(f"patch of {ref.kind} {ref.name}: the patch is not a JSON object")
        for own in ("metadata", "apiVersion", "kind"):
            if own in fields:
                raise _Denied(f"patch of {ref.kind} {ref.name}: it may not change `{own}`; use a metadata change")
        sub = of["subresource"]
        if sub is not None:
            named = f"patch of {ref.kind}: subresource {sub}"
            self.asked("patch", ref, named, lambda rule: any(_matches(one, sub) for one in rule.get("subresources", [])))


@dataclass
class Visit:
    """One visit to one target. The job is `job` in the namespace `default`. `Visit.to` and `Visit.to_gone` make it."""

    name: str
    object: Optional[Document] = None
    uid: Optional[str] = None
    parameters: Document = field(default_factory=dict)
    config: Any = field(default_factory=dict)
    extras: dict[str, str] = field(default_factory=dict)
    containers: Sequence[str] = ()
    tasks: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1
    call_try: int = 1
    cancelled: bool = False
    now_ms: int = NOW
    started_ms: int = NOW - 60_000
    deadline_ms: Optional[int] = None
    watched: list[Document] = field(default_factory=list)
    """The objects that the host watches."""
    live: list[Document] = field(default_factory=list)
    """The objects that the API server has."""
    claimed: Sequence[str] = ()
    """Names that other targets hold."""
    successors: Optional[Sequence[str]] = None
    """Names of the objects of the relation `same-controller`."""
    unserved: Sequence[str] = ()
    """Kinds that the cluster does not serve, such as `apps/v1 ReplicaSet`."""
    before_look: bool = False
    """Lets every live read fail with `Unavailable`, as the host does at first."""
    manifest: Optional[Document] = None
    """The manifest, instead of the file `manifest.json` of the plugin."""

    @classmethod
    def to(cls, target: Document, objects: Sequence[Document] = (), **facts: Any) -> "Visit":
        """Makes a visit to this object, in a cluster with these objects."""
        metadata, known = target["metadata"], [target, *objects]
        return cls(**{"name": metadata["name"], "object": target, "uid": metadata["uid"], "watched": [*known], "live": [*known], **facts})

    @classmethod
    def to_gone(cls, name: str, objects: Sequence[Document] = (), **facts: Any) -> "Visit":
        """Makes a visit to a target whose object is gone."""
        return cls(**{"name": name, "watched": [*objects], "live": [*objects], **facts})

    def with_(self, objects: Sequence[Document] = (), **facts: Any) -> "Visit":
        """Returns the visit with other facts and further objects."""
        return replace(copy.deepcopy(self), **{"watched": [*self.watched, *objects], "live": [*self.live, *objects], **facts})

    def operate(self, plugin: Action) -> Proposal:
        """Calls `operate`. Raises `CallFailed` if the call fails or the host would refuse the answer."""
        answer: Proposal = self._call(plugin, "operate")
        return answer

    def progress(self, plugin: Action) -> Report:
        """Calls `progress`. Raises `CallFailed` as `operate` does."""
        answer: Report = self._call(plugin, "progress")
        return answer

    def release(self, plugin: Action) -> Proposal:
        """Calls `release`. Raises `CallFailed` as `operate` does."""
        answer: Proposal = self._call(plugin, "release")
        return answer

    def _call(self, plugin: Action, name: str) -> Any:
        rules = self.manifest or manifest()
        for what, path, reason in ((self.parameters, "spec.parameters", "ParametersInvalid"), (self.config, "config", "ConfigInvalid")):
            schema = rules.get(path.removeprefix("spec."), {"additionalProperties": False})
            wrong = _invalid(schema, what, path)
            if wrong:
                raise CallFailed(reason, wrong)
        call = _Call(self, rules, plugin)
        oarlock.connect(call)
        try:
            call.relations = oarlock.call(plugin, "setup")
            call.check_relations()
            answer = oarlock.call(plugin, name, call.job, call.target)
            proposal = answer.proposal if isinstance(answer, Report) else answer
            most = rules.get("limits", {}).get("outputBytes", 262_144)
            if len(repr(answer)) > most:
                raise CallFailed("PluginLimitExceeded", f"its answer has more than {most} bytes", True)
            call.check(proposal)
        except Failure as failure:
            raise CallFailed(failure.reason, failure.message, failure.retryable) from failure
        except _Denied as denied:
            raise CallFailed("MutationDenied", str(denied)) from None
        return answer

    def after(self, answer: Union[Proposal, Report]) -> "Visit":
        """Returns the next visit, after the host has applied an answer."""
        proposal = answer.proposal if isinstance(answer, Report) else answer
        following = self.with_(call_try=1)
        for key in proposal.remove_extra:
            following.extras.pop(key, None)
        following.extras.update(proposal.set_extra)
        for mutation in proposal.mutations:
            following._make(mutation)
        return following

    def gone(self) -> "Visit":
        """Removes the object of the target."""
        left = [[one for one in of if one["metadata"].get("uid") != self.uid] for of in (self.watched, self.live)]
        return replace(copy.deepcopy(self), object=None, watched=left[0], live=left[1])

    def _edit(self, ref: ObjectRef, change: Callable[[Document], Document]) -> None:
        def edited(document: Document) -> Document:
            if not _is_named(document, ref):
                return document
            version = str(int(document["metadata"]["resourceVersion"]) + 1)
            changed: Document = _merged(change(copy.deepcopy(document)), {"metadata": {"resourceVersion": version}})
            return changed

        self.watched, self.live = [edited(one) for one in self.watched], [edited(one) for one in self.live]
        self.object = self.object and edited(self.object)

    def _make(self, mutation: Mutation) -> None:
        case, of = mutation.case, mutation.fields
        node_ref = ObjectRef("v1", "Node", None, of.get("node", ""))
        if case == "metadata":
            # The host undoes changes only on the target.
            keep = of["keep"] or not (self.object and _is_named(self.object, of["object"]))
            self._edit(of["object"], lambda document: _marked(document, {**of, "keep": keep}))
        elif case == "patch":
            self._edit(of["object"], lambda document: _merged(document, json.loads(of["patch"])))
        elif case == "schedulable":
            self._edit(node_ref, lambda document: _merged(document, {"spec": {"unschedulable": not of["schedulable"]}}))
        elif case == "taint":
            self._edit(node_ref, lambda document: _merged(document, {"spec": {"taints": _tainted(document, of)}}))
        elif case == "create":
            document = json.loads(of["document"])
            made = object(document["apiVersion"], document["kind"], NAMESPACE, document["metadata"]["name"], document)
            owner = {"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "name": "job", "uid": JOB_UID, "controller": True}
            made["metadata"]["ownerReferences"] = [owner]
            if not any(_is_named(one, replace(_ref(made), uid=None)) for one in self.live):
                self.watched, self.live = [*self.watched, made], [*self.live, made]
        elif case in ("evict", "delete"):
            self._ask_to_go(of.get("pod") or of["object"], of["grace_period_seconds"])

    def _ask_to_go(self, ref: ObjectRef, seconds: Optional[int]) -> None:
        def stays(one: Document) -> bool:
            return not _is_named(one, ref) or ref.kind == "Pod" or bool(one["metadata"].get("finalizers"))

        def going(document: Document) -> Document:
            of_pod = document.get("spec", {}).get("terminationGracePeriodSeconds", 30) if ref.kind == "Pod" else 0
            at = datetime.fromtimestamp(self.now_ms / 1000 + (of_pod if seconds is None else seconds), timezone.utc)
            document["metadata"].setdefault("deletionTimestamp", at.strftime("%Y-%m-%dT%H:%M:%SZ"))
            return document

        self.watched, self.live = [one for one in self.watched if stays(one)], [one for one in self.live if stays(one)]
        self._edit(ref, going)


def _tainted(document: Document, of: Document) -> list[Document]:
    others = [one for one in document.get("spec", {}).get("taints", []) if (one["key"], one["effect"]) != (of["key"], of["effect"])]
    return [*others, {name: of[name] for name in ("key", "value", "effect")}] if of["present"] else others


def _marked(document: Document, of: Document) -> Document:
    """Sets and removes marks on an object, with the list of the marks that the job holds."""
    metadata, keep = document["metadata"], of["keep"]
    held = set(json.loads(metadata.get("annotations", {}).get(HOLD, "[]")))
    for name, word in (("labels", "label"), ("annotations", "annotation")):
        for key, value in of["set_" + name]:
            values = metadata.setdefault(name, {})
            if not keep and key not in values:
                held.add(f"{word}:{key}")
            values[key] = value
        for key in of["remove_" + name]:
            if f"{word}:{key}" in held or keep:
                metadata.get(name, {}).pop(key, None)
            held.discard(f"{word}:{key}")
    names = metadata.get("finalizers", [])
    for name in of["add_finalizers"]:
        if name not in names:
            names = [*names, name]
            held |= set() if keep else {f"finalizer:{name}"}
    for name in of["remove_finalizers"]:
        if f"finalizer:{name}" in held or keep:
            names = [one for one in names if one != name]
        held.discard(f"finalizer:{name}")
    if names or "finalizers" in metadata:
        metadata["finalizers"] = names
    if held:
        metadata.setdefault("annotations", {})[HOLD] = json.dumps(sorted(held))
    else:
        metadata.get("annotations", {}).pop(HOLD, None)
    return document
