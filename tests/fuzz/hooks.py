"""What the document of the REST API cannot say of its requests.

Takes the cases that schemathesis makes of the document; makes most of those that keep to it ones that a job can come of, on the nodes and
workloads of `oarlock dev`, and sends some of the others to jobs that were made. Cases that break the document on purpose stay as they are.
Nothing is drawn here but by the case itself, so a seed gives the same cases.
"""

import base64
import json
import zlib
from collections import deque

import hypothesis
import schemathesis
from schemathesis import GenerationMode
from schemathesis.generation.meta import TestPhase

# Most of the time would go into cases that differ little from one that was accepted.
hypothesis.target = lambda observation, *, label="": observation

SCOPES = [
    [("node", "node-0")],
    [("node", "node-1"), ("node", "node-2")],
    [("node", "node-2"), ("label", "a=b")],
    [("node.host", "node-0")],
    [("workload", "default/deployment/web")],
    [("workload", "web")],
    [("workspace", "default")],
    [("node", "no-such-node")],
]
# What only a preflight takes, and what a reboot does not take either.
OF_PREFLIGHT = ["image", "entryPoint", "env", "hostpath", "resource", "replica"]
OF_ADDON = ["securityUpgrade", "securityOperation"]
SCRIPT = base64.b64encode(b"#!/bin/sh\ntrue\n").decode()

made = deque(maxlen=64)


def number(of):
    """A number that is always the same for the same thing."""
    return zlib.crc32(json.dumps(of, sort_keys=True, default=str).encode())


def likely(body):
    """The same body, such that a job can come of it."""
    chance = number(body)
    of_chance = lambda items, digit: items[chance // 10**digit % len(items)]
    kind = of_chance(["reboot", "reboot", "preflight", "addon", "dumplog"], 0)
    inputs = [{"name": name, "value": value} for name, value in of_chance(SCOPES, 1)]
    if kind == "reboot" and chance // 100 % 3 == 0:
        inputs.append({"name": "drain", "value": of_chance(["true", "false", "perhaps"], 3)})
    job = {**body, "type": kind, "inputs": inputs}
    if not any(letter.isascii() and letter.isalnum() for letter in job["name"]):
        job["name"] = "fuzz" + job["name"][:60]
    if kind != "preflight":
        job = {field: value for field, value in job.items() if field not in OF_PREFLIGHT}
    else:
        job |= {"image": "busybox", "entryPoint": SCRIPT}
    if kind not in ("preflight", "addon"):
        job = {field: value for field, value in job.items() if field not in OF_ADDON}
    return job


@schemathesis.hook
def map_case(context, case):
    meta = case.meta
    if meta is None or meta.generation.mode != GenerationMode.POSITIVE:
        return case
    is_chain = meta.phase.name == TestPhase.STATEFUL
    if case.operation.label == "POST /api/v1/opsjobs" and isinstance(case.body, dict):
        if number(case.body) % 5 != 0 and isinstance(case.body.get("name"), str):
            case.body = likely(case.body)
    elif made and not is_chain and "jobId" in (case.path_parameters or {}):
        chance = number(case.path_parameters)
        if chance % 3 != 0:
            case.path_parameters["jobId"] = made[chance % len(made)]
    return case


@schemathesis.hook
def after_call(context, case, response):
    if case.operation.label == "POST /api/v1/opsjobs" and response.status_code == 200:
        job = response.json().get("jobId")
        if job:
            made.append(job)


@schemathesis.check
def unreachable_tells_when_to_try_again(context, response, case):
    assert response.status_code != 503 or "retry-after" in response.headers, "503 without Retry-After"
