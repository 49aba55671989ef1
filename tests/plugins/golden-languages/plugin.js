// A plugin that uses the whole contract by the JavaScript SDK: every function that a plugin may call, and every type that it may return.
// It is the plugin of `../golden` in another language, and the same tests run it.
import {
  Failure, action, annotate, change, cordon, create, drain, event, evict, extra, failed, label, log, other, patch, processing, relation,
  remove, succeeded, taint, task,
} from "./oarlock/sdk.js";

const KEYS = {
  label: ["label", "golden.test/of"], extra: ["extra", "Chosen"], field: ["field", "/status/phase"], parameter: ["parameter", "/partner"],
  job: ["owner-is-job"], target: ["owner-is-target"], controller: ["same-controller"],
};
const quoted = (value) => (value === undefined ? "None" : `Some(${JSON.stringify(value)})`);

const inWords = (object) => [
  `${object.apiVersion} ${object.kind} ${quoted(object.namespace)}`,
  `${object.name} ${object.uid} ${object.resourceVersion !== ""}`,
  `${quoted(object.label("app"))} ${quoted(object.annotation("note"))}`,
  `${object.hasFinalizer("f")} ${quoted(object.deletedAt)}`,
  `${quoted(object.field("/status/phase"))} ${object.json() !== undefined}`,
].join("; ");

const readAll = (visit) => {
  const { job, target } = visit;
  const seen = {
    job: `${job.namespace}/${job.name} ${job.uid} ${job.action}`,
    count: `${job.targetCount} ${job.cancelled} ${visit.nowMs}`,
    target: `${target.name} ${target.index} ${target.kind} ${quoted(target.uid)}`,
    try: `${target.attempt} ${target.callTry}`,
    times: `${target.startedMs} ${quoted(target.deadlineMs)}`,
    extras: `${quoted(visit.extra("Chosen"))} ${Object.keys(visit.extras).length}`,
    rest: `${target.containers} ${visit.task("none") === undefined}`,
  };
  if (visit.object) seen.object = inWords(visit.object);
  for (const name of Object.keys(KEYS)) seen[`by-${name}`] = visit.related(name).length;
  seen.map = visit.get("v1", "ConfigMap", "colours", { namespace: job.namespace, live: true })?.name ?? "";
  seen.serves = visit.serves("v1", "ConfigMap");
  return seen;
};

const mutations = {
  metadata: ({ pod }) => change(pod, {
    labels: { "golden.test/a": "1", "golden.test/b": null }, annotations: { "golden.test/a": "1", "golden.test/b": null },
    addFinalizers: ["golden.test/a"], removeFinalizers: ["golden.test/b"],
  }),
  label: ({ pod }) => [label(pod, { "golden.test/a": "1" }), annotate(pod, { "golden.test/a": "1" })],
  create: () => create({ apiVersion: "v1", kind: "ConfigMap", metadata: { name: "made" } }),
  patch: ({ map }) => patch(map, { data: { a: "b" } }),
  evict: ({ pod }) => evict(pod, { gracePeriodSeconds: 5 }),
  delete: ({ pod }) => remove(pod, { propagation: "foreground" }),
  schedulable: () => cordon("n1"),
  taint: () => taint("n1", { key: "k", value: "v", effect: "NoSchedule" }),
  drain: () => drain("n1"),
  task: () => task("t", "run-on-node", {}),
};

export default action({
  relations: Object.entries(KEYS).map(([name, by]) => relation(name, "v1", "Pod", by)),
  exclusiveExtras: ["Chosen"],
  setup: ({ config }) => {
    if (config("/fail")) throw new Failure("Told", "It was told to fail.");
    return config("/other") ? [relation("other", "v1", "Pod", ["other", ["unheard-of", "{}"]])] : [];
  },
  operate: (visit) => {
    const { job, target, parameter } = visit;
    const wanted = parameter("/answer");
    if (wanted === "raise") throw new RangeError("It was told to.");
    if (wanted === "print") console.log("printed", { a: 1 });
    if (wanted === "open") return Promise.resolve();
    const seen = readAll(visit);
    for (const write of Object.values(log)) write("golden", { seen: Object.keys(seen).length });
    const pod = { apiVersion: "v1", kind: "Pod", namespace: job.namespace, name: target.name, uid: target.uid };
    const map = { apiVersion: "v1", kind: "ConfigMap", namespace: job.namespace, name: "colours" };
    const made = wanted && (mutations[wanted]?.({ pod, map }) ?? other(wanted, {}));
    return [made, Object.entries(seen).map(([key, value]) => extra(key, value)), extra("Gone", null), event("Read", "All of it.")];
  },
  progress: ({ parameter }) => {
    const end = parameter("/end");
    const report = end === "Succeeded" ? succeeded() : end === "Failed" ? failed("Told", "It was told to.") : processing();
    return { ...report, checkAfterMs: 1_000 };
  },
  release: () => { throw new Failure("NotYet", "It is not done.", { retryable: true, retryAfterMs: 1 }); },
});
