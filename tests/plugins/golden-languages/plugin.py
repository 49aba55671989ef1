"""A plugin that uses the whole contract by the Python SDK: every function that a plugin may call, and every type that it may return.

It is the plugin of `../golden` in another language, and the same tests run it.
"""

import logging
from dataclasses import replace
from typing import Any

from oarlock import Action, Changes, Failure, KubeObject, ObjectRef, Relation, Report, Visit, change, config, cordon, create, delete, drain
from oarlock import event, evict, extra, failed, other, patch, processing, succeeded, taint, task

KEYS: dict[str, Any] = {
    "label": ("label", "golden.test/of"), "extra": ("extra", "Chosen"), "field": ("field", "/status/phase"),
    "parameter": ("parameter", "/partner"), "job": ("owner-is-job",), "target": ("owner-is-target",), "controller": ("same-controller",),
}  # fmt: skip


def quoted(value: Any) -> str:
    return "None" if value is None else f'Some("{value}")'


def in_words(of: KubeObject) -> str:
    parts = [
        f"{of.api_version} {of.kind} {quoted(of.namespace)}",
        f"{of.name} {of.uid} {str(of.resource_version != '').lower()}",
        f"{quoted(of.label('app'))} {quoted(of.annotation('note'))}",
        f"{of.has_finalizer('f')} {quoted(of.deleted_at_ms)}",
        f"{quoted(of.field('/status/phase'))} {of.json() is not None}",
    ]
    return "; ".join(parts)


def read_all(visit: Visit) -> dict[str, str]:
    job, target = visit.job, visit.target
    seen = {
        "job": f"{job.namespace()}/{job.name()} {job.uid()} {job.action()}",
        "count": f"{job.target_count()} {job.cancelled()} {visit.now_ms}",
        "target": f"{target.name()} {target.index()} {target.kind()} {quoted(target.uid())}",
        "try": f"{target.attempt()} {target.call_try()}",
        "times": f"{target.started_ms()} {target.deadline_ms()}",
        "extras": f"{quoted(visit.extra('Chosen'))} {len(visit.extras)}",
        "rest": f"{target.containers()} {visit.task('none') is None}",
    }
    if visit.object:
        seen["object"] = in_words(visit.object)
    for name in KEYS:
        seen[f"by-{name}"] = str(len(visit.related(name)))
    found = visit.get("v1", "ConfigMap", "colours", namespace=job.namespace(), live=True)
    seen["map"] = found.name if found else ""
    seen["serves"] = str(visit.serves("v1", "ConfigMap")).lower()
    return seen


def mutation(name: str, pod: ObjectRef) -> Changes:
    marks = {"golden.test/a": "1", "golden.test/b": None}
    made = {
        "metadata": change(pod, labels=marks, annotations=marks, add_finalizers=["golden.test/a"], remove_finalizers=["golden.test/b"]),
        "create": create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}),
        "patch": patch(replace(pod, kind="ConfigMap", name="colours", uid=None), {"data": {"a": "b"}}),
        "evict": evict(pod, grace_period_seconds=5),
        "delete": delete(pod, propagation="foreground"),
        "schedulable": cordon("n1"),
        "taint": taint("n1", "k", "NoSchedule", value="v"),
        "drain": drain("n1"),
        "task": task("t", "run-on-node", {}),
    }
    return made.get(name, other(name, {}))


class Plugin(Action):
    relations = [Relation(name, "v1", "Pod", *by) for name, by in KEYS.items()]
    exclusive_extras = ["Chosen"]

    def setup(self) -> list[Relation]:
        if config("/fail"):
            raise Failure("Told", "It was told to fail.")
        return [Relation("other", "v1", "Pod", "other", ("unheard-of", "{}"))] if config("/other") else []

    def operate(self, visit: Visit) -> Changes:
        wanted = visit.parameter("/answer")
        if wanted == "raise":
            raise RuntimeError("It was told to.")
        if wanted == "print":
            print("printed")
            logging.warning("logged")
        if wanted == "open":
            open("/etc/hosts")
        seen = read_all(visit)
        pod = ObjectRef("v1", "Pod", visit.job.namespace(), visit.target.name(), visit.target.uid())
        stored = [extra(key, value) for key, value in seen.items()]
        return [wanted and mutation(wanted, pod), stored, extra("Gone", None), event("Read", "All of it.")]

    def progress(self, visit: Visit) -> Report:
        end = visit.parameter("/end")
        report = succeeded() if end == "Succeeded" else failed("Told", "It was told to.") if end == "Failed" else processing()
        return replace(report, check_after_ms=1_000)

    def release(self, visit: Visit) -> Changes:
        raise Failure("NotYet", "It is not done.", retryable=True, retry_after_ms=1)
