"""The component: connects the plugin with the functions of the host. The build begins with this module, and tests do not load it."""

import logging
from typing import Any, Callable, Optional, Sequence

from componentize_py_types import Err
from plugin import Plugin
from wit_world.exports import handler as wit
from wit_world.imports import cluster, config, log

import oarlock


class _Host:
    """The functions of the real host."""

    def get(self, api_version: str, kind: str, namespace: Optional[str], name: str, live: bool) -> Any:
        return cluster.get(api_version, kind, namespace, name, self._freshness(live))

    def serves(self, api_version: str, kind: str) -> bool:
        return cluster.serves(api_version, kind)

    def related(self, target: Any, relation: str, live: bool) -> Sequence[Any]:
        return target.related(relation, self._freshness(live))

    def config(self, pointer: str) -> Optional[str]:
        return config.value(pointer)

    @staticmethod
    def _freshness(live: bool) -> cluster.Freshness:
        return cluster.Freshness.LIVE if live else cluster.Freshness.WATCHED


class _Log(logging.Handler):
    """Writes the records of `logging` to the log of the host."""

    def emit(self, record: logging.LogRecord) -> None:
        levels = ((logging.ERROR, log.Level.ERROR), (logging.WARNING, log.Level.WARN), (logging.INFO, log.Level.INFO))
        level = next((level for least, level in levels if record.levelno >= least), log.Level.DEBUG)
        log.write(level, self.format(record), [])


logging.basicConfig(level=logging.DEBUG, handlers=[_Log()], format="%(message)s")
oarlock.connect(_Host())


def _ref(of: oarlock.ObjectRef) -> wit.ObjectRef:
    return wit.ObjectRef(of.api_version, of.kind, of.namespace, of.name, of.uid)


def _metadata(of: dict[str, Any]) -> Any:
    return wit.MetadataChange(**{**of, "object": _ref(of["object"])})


def _deletion(of: dict[str, Any]) -> Any:
    effect = of["propagation"] and wit.Propagation[of["propagation"].upper()]
    return wit.Deletion(_ref(of["object"]), of["grace_period_seconds"], effect)


_MUTATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "metadata": lambda of: wit.Mutation_Metadata(_metadata(of)),
    "create": lambda of: wit.Mutation_Create(of["document"]),
    "patch": lambda of: wit.Mutation_Patch(wit.MergePatch(_ref(of["object"]), of["subresource"], of["patch"])),
    "evict": lambda of: wit.Mutation_Evict(wit.Eviction(_ref(of["pod"]), of["grace_period_seconds"])),
    "delete": lambda of: wit.Mutation_Delete(_deletion(of)),
    "schedulable": lambda of: wit.Mutation_Schedulable(wit.NodeSchedulable(**of)),
    "taint": lambda of: wit.Mutation_Taint(wit.NodeTaint(**of)),
    "drain": lambda of: wit.Mutation_Drain(wit.NodeDrain(**of)),
    "task": lambda of: wit.Mutation_Task(wit.TaskRequest(**of)),
    "other": lambda of: wit.Mutation_Other((of["name"], of["arguments"])),
}
_RELATIONS: dict[str, Callable[[Any], Any]] = {
    "other": wit.RelationKey_Other,
    "label": wit.RelationKey_Label,
    "extra": wit.RelationKey_Extra,
    "field": wit.RelationKey_Field,
    "parameter": wit.RelationKey_Parameter,
    "owner-is-job": lambda _: wit.RelationKey_OwnerIsJob(),
    "owner-is-target": lambda _: wit.RelationKey_OwnerIsTarget(),
    "same-controller": lambda _: wit.RelationKey_SameController(),
}


def _registration(relations: list[oarlock.Relation]) -> wit.Registration:
    keyed = [wit.Relation(one.name, one.api_version, one.kind, _RELATIONS[one.by](one.value)) for one in relations]
    return wit.Registration(keyed, [*_plugin.exclusive_extras])


def _proposal(of: oarlock.Proposal) -> wit.Proposal:
    events = [wit.Event(wit.Severity[event.severity.upper()], event.reason, event.message) for event in of.events]
    return wit.Proposal([_MUTATIONS[one.case](one.fields) for one in of.mutations], of.set_extra, of.remove_extra, events)


def _report(of: oarlock.Report) -> wit.Report:
    states = {"processing": wit.State_Processing, "succeeded": wit.State_Succeeded}
    state = wit.State_Failed(wit.Error(of.reason, of.message)) if of.state == "failed" else states[of.state]()
    return wit.Report(state, _proposal(of.proposal), of.check_after_ms)


_plugin = Plugin()


def _call(name: str, convert: Callable[[Any], Any], *handles: Any) -> Any:
    try:
        return convert(oarlock.call(_plugin, name, *handles))
    except oarlock.Failure as error:
        raise Err(wit.Failure(error.retryable, error.reason, error.message, error.retry_after_ms)) from error


class Handler:
    """The exports of the component."""

    def setup(self) -> Any:
        return _call("setup", _registration)

    def operate(self, job: Any, target: Any) -> Any:
        return _call("operate", _proposal, job, target)

    def progress(self, job: Any, target: Any) -> Any:
        return _call("progress", _report, job, target)

    def release(self, job: Any, target: Any) -> Any:
        return _call("release", _proposal, job, target)
