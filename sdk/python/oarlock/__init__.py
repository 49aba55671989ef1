"""The Python SDK for Oarlock plugins.

Subclass `Action` as `Plugin` in `plugin.py`. Import modules at the top of a file: only modules that the build loads are in the component.
The functions of the contract are documented in `wit/`.
"""

import inspect
import json
import traceback
from dataclasses import dataclass, field
from typing import Any, Iterable, Literal, Optional, Protocol, Sequence, Union

KEPT = 1000
"""The most characters of a message. The host cuts it at 1,024."""


class Host(Protocol):
    """The functions of the host. `component.py` connects the real ones, and `kit.py` connects the fake ones of a test."""

    def get(self, api_version: str, kind: str, namespace: Optional[str], name: str, live: bool) -> Any: ...
    def serves(self, api_version: str, kind: str) -> bool: ...
    def related(self, target: Any, relation: str, live: bool) -> Sequence[Any]: ...
    def config(self, pointer: str) -> Optional[str]: ...


_host: Host


def connect(host: Host) -> None:
    """Sets the functions of the host."""
    global _host
    _host = host


def _json(text: Optional[str], default: Any = None) -> Any:
    value = None if text is None else json.loads(text)
    return default if value is None else value


def config(pointer: str, default: Any = None) -> Any:
    """Returns a setting of the grant at a JSON Pointer."""
    return _json(_host.config(pointer), default)


class Failure(Exception):
    """Ends a call without an answer. The host repeats the call if `retryable`, and otherwise fails the attempt."""

    def __init__(self, reason: str, message: str, retryable: bool = False, retry_after_ms: Optional[int] = None):
        super().__init__(message)
        self.reason, self.message, self.retryable, self.retry_after_ms = reason, message, retryable, retry_after_ms


@dataclass(frozen=True)
class ObjectRef:
    """Names one Kubernetes object. With a UID, a mutation never changes a later object of the same name."""

    api_version: str
    kind: str
    namespace: Optional[str]
    name: str
    uid: Optional[str] = None


class KubeObject:
    """A Kubernetes object as it stood when the round began."""

    def __init__(self, handle: Any):
        self._handle = handle
        self.api_version: str = handle.api_version()
        self.kind: str = handle.kind()
        self.namespace: Optional[str] = handle.namespace()
        self.name: str = handle.name()
        self.uid: str = handle.uid()

    def __bool__(self) -> Literal[True]:
        """An object is always true, so that `visit.object and label(...)` is a change or `None`."""
        return True

    @property
    def resource_version(self) -> str:
        """The resource version. Compare it for equality only."""
        return str(self._handle.resource_version())

    @property
    def deleted_at_ms(self) -> Optional[int]:
        """The deletion time, in milliseconds since 1970, or `None` if nobody deletes the object."""
        value: Optional[int] = self._handle.deletion_time_ms()
        return value

    def label(self, key: str) -> Optional[str]:
        """Returns the value of a label."""
        value: Optional[str] = self._handle.label(key)
        return value

    def annotation(self, key: str) -> Optional[str]:
        """Returns the value of an annotation."""
        value: Optional[str] = self._handle.annotation(key)
        return value

    def has_finalizer(self, name: str) -> bool:
        """Returns true if the object has a finalizer."""
        return bool(self._handle.has_finalizer(name))

    def field(self, pointer: str, default: Any = None) -> Any:
        """Returns the value at a JSON Pointer, such as `/spec/nodeName`. The manifest has to declare the field."""
        return _json(self._handle.field(pointer), default)

    def json(self) -> Any:
        """Returns the declared fields as one document."""
        return _json(self._handle.json())

    @property
    def ref(self) -> ObjectRef:
        """The name of the object, for a mutation."""
        return ObjectRef(self.api_version, self.kind, self.namespace, self.name, self.uid)


def _wrapped(handle: Any) -> Optional[KubeObject]:
    return None if handle is None else KubeObject(handle)


class Visit:
    """One visit to a target: everything that a call can read. `job` and `target` are the handles of `wit/deps/host/jobs.wit`."""

    def __init__(self, job: Any, target: Any):
        self.job, self.target = job, target

    @property
    def now_ms(self) -> int:
        """The time at which the round began, in milliseconds since 1970."""
        return int(self.job.now_ms())

    @property
    def object(self) -> Optional[KubeObject]:
        """The object of the target, or `None` once it is gone."""
        return _wrapped(self.target.object())

    @property
    def extras(self) -> dict[str, str]:
        """Everything that earlier proposals and the host stored for this target."""
        return dict(self.target.extras())

    def extra(self, key: str) -> Optional[str]:
        """Returns the stored value of a key."""
        value: Optional[str] = self.target.extra(key)
        return value

    def parameter(self, pointer: str, default: Any = None) -> Any:
        """Returns a parameter of the job at a JSON Pointer, such as `/who`."""
        return _json(self.job.parameter(pointer), default)

    def related(self, relation: str, live: bool = False) -> list[KubeObject]:
        """Returns the objects of a relation. Read `live` before you decide from the absence of an object."""
        return [KubeObject(handle) for handle in _host.related(self.target, relation, live)]

    def get(self, api_version: str, kind: str, name: str, namespace: Optional[str] = None, live: bool = False) -> Optional[KubeObject]:
        """Reads one object by its name. `None` means that it does not exist."""
        return _wrapped(_host.get(api_version, kind, namespace, name, live))

    def serves(self, api_version: str, kind: str) -> bool:
        """Returns true if the cluster serves a kind."""
        return _host.serves(api_version, kind)

    def task(self, name: str) -> Any:
        """Returns the status of a task (`state`, `exit_code`, `output`, `message`), or `None` if there is none."""
        return self.target.task(name)


@dataclass(frozen=True)
class Mutation:
    """A change of the cluster: a case of `mutation` of the contract, with its fields."""

    case: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Extra:
    """A value to store for the target. `None` removes the key."""

    key: str
    value: Optional[str]


@dataclass(frozen=True)
class Event:
    """An event to record on the job."""

    severity: Literal["normal", "warning"]
    reason: str
    message: str


Item = Union[Mutation, Extra, Event]
Changes = Union[None, Literal[False], Item, Iterable[Any]]
Named = Union[KubeObject, ObjectRef]


def _ref(of: Named) -> ObjectRef:
    return of if isinstance(of, ObjectRef) else of.ref


def _node(of: Union[str, Named]) -> str:
    return of if isinstance(of, str) else of.name


def change(
    of: Named,
    labels: Optional[dict[str, Optional[str]]] = None,
    annotations: Optional[dict[str, Optional[str]]] = None,
    add_finalizers: Sequence[str] = (),
    remove_finalizers: Sequence[str] = (),
    keep: bool = False,
) -> Mutation:
    """Sets labels, annotations and finalizers. A value `None` removes a key. Without `keep`, the host undoes all at the release."""
    fields: dict[str, Any] = {"object": _ref(of)}
    for name, values in (("labels", labels or {}), ("annotations", annotations or {})):
        fields["set_" + name] = [(key, value) for key, value in values.items() if value is not None]
        fields["remove_" + name] = [key for key, value in values.items() if value is None]
    return Mutation("metadata", {**fields, "add_finalizers": [*add_finalizers], "remove_finalizers": [*remove_finalizers], "keep": keep})


def label(of: Named, labels: dict[str, Optional[str]], keep: bool = False) -> Mutation:
    """Sets labels. A value `None` removes a label. Without `keep`, the host undoes this at the release."""
    return change(of, labels=labels, keep=keep)


def annotate(of: Named, annotations: dict[str, Optional[str]], keep: bool = False) -> Mutation:
    """Sets annotations. A value `None` removes an annotation. Without `keep`, the host undoes this at the release."""
    return change(of, annotations=annotations, keep=keep)


def create(document: dict[str, Any]) -> Mutation:
    """Creates an object, unless it exists."""
    return Mutation("create", {"document": json.dumps(document)})


def patch(of: Named, fields: dict[str, Any], subresource: Optional[str] = None) -> Mutation:
    """Changes an object by a JSON Merge Patch."""
    return Mutation("patch", {"object": _ref(of), "subresource": subresource, "patch": json.dumps(fields)})


def evict(pod: Named, grace_period_seconds: Optional[int] = None) -> Mutation:
    """Evicts a Pod. The host honours disruption budgets."""
    return Mutation("evict", {"pod": _ref(pod), "grace_period_seconds": grace_period_seconds})


def delete(
    of: Named, grace_period_seconds: Optional[int] = None, propagation: Optional[Literal["background", "foreground", "orphan"]] = None
) -> Mutation:
    """Deletes an object."""
    return Mutation("delete", {"object": _ref(of), "grace_period_seconds": grace_period_seconds, "propagation": propagation})


def cordon(node: Union[str, Named]) -> Mutation:
    """Cordons a Node."""
    return Mutation("schedulable", {"node": _node(node), "schedulable": False})


def uncordon(node: Union[str, Named]) -> Mutation:
    """Uncordons a Node that this job cordoned."""
    return Mutation("schedulable", {"node": _node(node), "schedulable": True})


def taint(node: Union[str, Named], key: str, effect: str, value: str = "", present: bool = True) -> Mutation:
    """Adds a taint to a Node. With `present=False`, removes it."""
    return Mutation("taint", {"node": _node(node), "key": key, "value": value, "effect": effect, "present": present})


def drain(node: Union[str, Named], grace_period_seconds: Optional[int] = None, delete_empty_dir_data: bool = False, force: bool = False) -> Mutation:
    """Drains a Node. Propose it at each visit until the extra `Drain` says that the drain is done."""
    fields = {"grace_period_seconds": grace_period_seconds, "delete_empty_dir_data": delete_empty_dir_data, "force": force}
    return Mutation("drain", {"node": _node(node), **fields})


def task(name: str, kind: str, arguments: dict[str, Any]) -> Mutation:
    """Starts a task of the host, unless a task of its name exists."""
    return Mutation("task", {"name": name, "kind": kind, "arguments": json.dumps(arguments)})


def other(name: str, arguments: Any) -> Mutation:
    """Proposes a mutation that this SDK does not know. A host that does not know it refuses the proposal."""
    return Mutation("other", {"name": name, "arguments": json.dumps(arguments)})


def extra(key: str, value: Optional[object]) -> Extra:
    """Stores a value for this target. `None` removes it. The value says what the plugin saw or intends, not what it did."""
    return Extra(key, None if value is None else str(value))


def waits_for(word: str, sentence: str) -> Extra:
    """Tells people what the target waits for: a CamelCase word and a sentence."""
    return extra("WaitsFor", f"{word}: {sentence[:200]}")


def event(reason: str, message: str) -> Event:
    """Records an event on the job."""
    return Event("normal", reason, message)


def warning(reason: str, message: str) -> Event:
    """Records a warning on the job."""
    return Event("warning", reason, message)


@dataclass
class Proposal:
    """The changes that a call proposes."""

    mutations: list[Mutation] = field(default_factory=list)
    set_extra: list[tuple[str, str]] = field(default_factory=list)
    remove_extra: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @classmethod
    def of(cls, changes: Changes) -> "Proposal":
        """Makes a proposal of one change, of lists of changes, or of nothing."""
        proposal = cls()
        proposal._add(changes)
        return proposal

    def _add(self, changes: Changes) -> None:
        if isinstance(changes, Mutation):
            self.mutations.append(changes)
        elif isinstance(changes, Event):
            self.events.append(changes)
        elif isinstance(changes, Extra) and changes.value is None:
            self.remove_extra.append(changes.key)
        elif isinstance(changes, Extra):
            self.set_extra.append((changes.key, changes.value or ""))
        elif isinstance(changes, (list, tuple)):
            for one in changes:
                self._add(one)
        elif changes:
            raise TypeError(f"{changes!r:.100} is no change: use the functions of the SDK, such as label() or extra()")


@dataclass
class Report:
    """The answer of `progress`."""

    state: Literal["processing", "succeeded", "failed"]
    reason: str = ""
    message: str = ""
    proposal: Proposal = field(default_factory=Proposal)
    check_after_ms: Optional[int] = None


def processing(changes: Changes = None, check_after_ms: Optional[int] = None) -> Report:
    """Reports that the target has not ended."""
    return Report("processing", proposal=Proposal.of(changes), check_after_ms=check_after_ms)


def succeeded(changes: Changes = None) -> Report:
    """Reports an observed success."""
    return Report("succeeded", proposal=Proposal.of(changes))


def failed(reason: str, message: str, changes: Changes = None) -> Report:
    """Reports a failure that another try would not cure."""
    return Report("failed", reason, message, Proposal.of(changes))


@dataclass(frozen=True)
class Relation:
    """Objects that the plugin needs to see next to its target. `by` is a case of `relation-key` of the contract."""

    name: str
    api_version: str
    kind: str
    by: Literal["label", "extra", "field", "parameter", "owner-is-job", "owner-is-target", "same-controller", "other"]
    value: Any = ""


def _traceback(error: BaseException) -> str:
    """Returns an exception and its frames, newest first, as one bounded line."""
    # `traceback.extract_tb` would look for the source files.
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(code, line) for code, line in frames if code.co_filename != __file__]
    at = " ".join(f"at {code.co_name} ({code.co_filename}:{line})" for code, line in reversed(own[-20:]))
    late = "; only modules that are imported at the top of a file are in the component" if isinstance(error, ImportError) else ""
    cause = f" because of {type(error.__cause__).__name__}: {str(error.__cause__)[:100]}" if error.__cause__ else ""
    return f"{type(error).__name__}: {str(error)[: KEPT // 2]}{late} {at}{cause}"[:KEPT]


def _failure(error: BaseException) -> Failure:
    """Returns the failure for anything that a plugin or the host can raise."""
    if isinstance(error, Failure):
        return error
    read: Any = getattr(error, "value", None)
    if hasattr(read, "reason") and hasattr(read, "message"):
        return Failure(read.reason, read.message[:KEPT], getattr(read, "retryable", read.reason != "NotDeclared"))
    return Failure("PluginException", _traceback(error))


class Action:
    """The action of a plugin. Override `operate` and `progress`, and `release` if the host cannot undo something alone."""

    relations: Sequence[Relation] = ()
    exclusive_extras: Sequence[str] = ()

    def __init_subclass__(cls) -> None:
        for name in ("setup", "operate", "progress", "release"):
            call = getattr(cls, name)
            if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
                raise TypeError(f"{cls.__name__}.{name} is async or a generator, and a call cannot wait: make it a plain function")

    def setup(self) -> Optional[Sequence[Relation]]:
        """Checks the settings of the grant (`config`), and returns the relations that they add. Raise `Failure` to refuse them."""
        return None

    def operate(self, visit: Visit) -> Changes:
        """Returns the changes that the target still needs, or nothing."""
        raise NotImplementedError("Plugin needs a method operate")

    def progress(self, visit: Visit) -> Report:
        """Returns how far the target is."""
        raise NotImplementedError("Plugin needs a method progress")

    def release(self, visit: Visit) -> Changes:
        """Returns the changes that undo what the host cannot undo alone."""
        return None


def call(plugin: Action, name: str, job: Any = None, target: Any = None) -> Any:
    """Calls a function of a plugin and returns its relations, proposal or report. Everything that it raises becomes a `Failure`."""
    try:
        if name == "setup":
            return [*plugin.relations, *(plugin.setup() or ())]
        answer = getattr(plugin, name)(Visit(job, target))
        if inspect.isawaitable(answer) or inspect.isgenerator(answer):
            raise Failure("PluginIsAsync", f"{name} returned {type(answer).__name__}, and a call cannot wait: return the changes as a list.")
        if name == "progress" and not isinstance(answer, Report):
            raise TypeError("progress returned no report: return processing(), succeeded() or failed()")
        return answer if name == "progress" else Proposal.of(answer)
    except BaseException as error:
        raise _failure(error) from error
