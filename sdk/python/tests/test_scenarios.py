"""Plays the scenarios that the kits of all languages share: each kit refuses the same deeds with the words of the host."""

import json
from pathlib import Path
from typing import Any

import pytest

from oarlock import Action, Changes, ObjectRef, Report, Visit, create, delete, drain, event, evict, extra, label, patch, succeeded
from oarlock import kit

SHARED = json.loads((Path(__file__).parents[2] / "kit-scenarios.json").read_text())
MANIFEST = json.loads((Path(__file__).parents[2] / "kit-scenarios.manifest.json").read_text())


def widget(namespace: str = "default") -> ObjectRef:
    return ObjectRef("x.io/v1", "Widget", namespace, "w")


DEEDS = {
    "label": lambda target, labels: label(target, labels),
    "evict": lambda _, named: evict(ObjectRef("v1", "Pod", "default", **named)),
    "delete": lambda _, named: delete(widget(**named)),
    "patch": lambda _, fields: patch(widget(), fields),
    "create": lambda _, metadata: create({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": metadata}),
    "drain": lambda _, name: drain(name),
}


class Strange(Action):
    def __init__(self, scenario: dict[str, Any]):
        self.scenario, self.seen = scenario, list[Any]()

    def operate(self, visit: Visit) -> Changes:
        scenario, target = self.scenario, visit.object
        assert target is not None
        for _ in range(scenario.get("calls", 0)):
            target.resource_version
        if "get" in scenario:
            visit.get("x.io/v1", scenario["get"], "w", namespace="default")
        if "related" in scenario:
            visit.related(scenario["related"])
        if "field" in scenario:
            self.seen.append(target.field(scenario["field"]))
        items: list[Any] = [DEEDS[name](target, of) for deed in scenario.get("mutations", []) for name, of in deed.items()]
        items += [event(*scenario["event"])] if "event" in scenario else []
        if "extra" in scenario:
            key, value = scenario["extra"]
            items.append(extra(key, value * scenario.get("long", 1)))
        return items * scenario.get("times", 1)

    def progress(self, visit: Visit) -> Report:
        return succeeded()


@pytest.mark.parametrize("scenario", SHARED["scenarios"], ids=lambda scenario: scenario["name"])
def test_scenario(scenario: dict[str, Any]) -> None:
    widget = kit.object("x.io/v1", "Widget", "default", "w")
    if "owner" in scenario:
        owner = {"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "name": scenario["owner"], "uid": "u"}
        widget["metadata"]["ownerReferences"] = [owner]
    web = kit.pod("web", {"spec": {"nodeName": "node-1"}, "status": {"conditions": [{"type": "Ready"}]}})
    facts = {"parameters": scenario.get("parameters", {}), "before_look": scenario.get("beforeLook", False)}
    visit = kit.Visit.to(web, objects=[widget], manifest=MANIFEST, **facts)
    plugin = Strange(scenario)
    if "refused" not in scenario:
        visit.operate(plugin)
        assert plugin.seen == ([scenario["reads"]] if "reads" in scenario else [])
        return
    reason, words = scenario["refused"]
    with pytest.raises(kit.CallFailed) as failed:
        visit.operate(plugin)
    assert failed.value.reason == reason, failed.value
    assert words in failed.value.message
