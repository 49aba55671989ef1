"""What the document of the REST API cannot say of its requests.

Takes the cases that schemathesis makes of the document. Of those that keep to it, most become requests that a job can come of, on the nodes
and workloads of `oarlock dev`, and many of those about one job are sent to a job that is there. Cases that break the document on purpose
stay as they are, but for parameters that are empty, which count as absent. Nothing is drawn here: what becomes of a case follows from the
case.
"""

import base64
import json
import zlib
from collections import deque

import hypothesis
import schemathesis
from schemathesis import GenerationMode
from schemathesis.generation.meta import TestPhase

CREATE = "POST /api/v1/opsjobs"
KINDS = ["reboot", "reboot", "preflight", "preflight", "addon", "dumplog", "exportimage"]
SCOPES = [
    [("node", "node-0")],
    [("node", "node-1"), ("node", "node-2")],
    [("node", "node-2"), ("label", "a=b")],
    [("node.host", "node-0")],
    [("workload", "default/deployment/web")],
    [("workload", "web")],
    [("workspace", "default")],
    [("node", "no-such-node")],
    [("node", "../pods")],
    [("workload", "default/pod/..")],
]
DRAINS = ["true", "false", "perhaps"]
OF_ALL = ["name", "timeoutSecond", "ttlSecondsAfterFinished", "excludedNodes", "isTolerateAll"]
OF_BATCHES = ["batchCount", "availableRatio"]
OF_KIND = {
    "reboot": OF_BATCHES,
    "preflight": [*OF_BATCHES, "securityUpgrade", "securityOperation", "env", "hostpath", "resource", "replica"],
    "addon": [*OF_BATCHES, "securityUpgrade", "securityOperation"],
    "dumplog": [],
    "exportimage": [],
}
SCRIPT = base64.b64encode(b"#!/bin/sh\ntrue\n").decode()

# Ids of jobs that were made.
made = deque(maxlen=64)

# Otherwise most of the time goes into cases that hardly differ from one that was accepted.
hypothesis.target = lambda observation, *, label="": observation


def number(thing):
    """A number that is the same for the same thing."""
    return zlib.crc32(json.dumps(thing, sort_keys=True, default=str).encode())


def likely(body):
    """A body with the same values that a job can come of."""
    chance = number(body)

    def one_of(things, digit):
        return things[chance // 10**digit % len(things)]

    kind = one_of(KINDS, 0)
    inputs = [{"name": name, "value": value} for name, value in one_of(SCOPES, 1)]
    if kind == "reboot" and one_of([True, False, False], 2):
        inputs.append({"name": "drain", "value": one_of(DRAINS, 3)})
    # Now and then with all that is not of its type, and with what no job has.
    kept = body.keys() if one_of(range(8), 4) == 0 else [*OF_ALL, *OF_KIND[kind]]
    job = {field: value for field, value in body.items() if field in kept} | {"type": kind, "inputs": inputs}
    if not any(letter.isascii() and letter.isalnum() for letter in job["name"]):
        job["name"] = "fuzz" + job["name"][:60]
    if kind == "preflight":
        job |= {"image": "busybox", "entryPoint": SCRIPT}
    return job


def is_empty(value):
    """Whether nothing is written of the value of a parameter: of an object, its keys are."""
    return all(item in ("", None) for item in value) if isinstance(value, (dict, list)) else value in ("", None)


@schemathesis.hook
def map_case(context, case):
    meta = case.meta
    if meta is not None and meta.generation.mode == GenerationMode.NEGATIVE and isinstance(case.query, dict):
        # Whatever an empty one breaks, this breaks as well.
        case.query = {name: "-" if is_empty(value) else value for name, value in case.query.items()}
    if meta is None or meta.generation.mode != GenerationMode.POSITIVE:
        return case
    if case.operation.label == CREATE:
        body = case.body
        if isinstance(body, dict) and isinstance(body.get("name"), str) and number(body) % 5 != 0:
            case.body = likely(body)
    elif made and "jobId" in (case.path_parameters or {}) and meta.phase.name != TestPhase.STATEFUL:
        chance = number(case.path_parameters)
        if chance % 3 != 0:
            case.path_parameters["jobId"] = made[chance % len(made)]
    return case


@schemathesis.hook
def after_call(context, case, response):
    if case.operation.label == CREATE and response.status_code == 200:
        job = response.json().get("jobId")
        if job:
            made.append(job)
