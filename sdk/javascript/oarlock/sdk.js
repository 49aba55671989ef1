// The JavaScript SDK for Oarlock plugins. `sdk.d.ts` documents each export. The functions of the contract are documented in `wit/`.

/** The functions of the host: `component.js` connects the real ones, and `kit.js` connects the fake ones of a test. */
let host;
export const connect = (functions) => { host = functions; };

const json = (text) => (text == null ? undefined : JSON.parse(text));
const pairs = (fields) => Object.entries(fields ?? {});
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? String(value));
// An engine may pass a u64 as a BigInt, and an absent option as null.
const ms = (instant) => (instant == null ? undefined : Number(instant));
const freshness = (options) => (options?.live ? "live" : "watched");
const KEPT = 1000;
const OWN_FRAME = /oarlock\/(sdk|kit|component)\.js:/;

export class Failure extends Error {
  constructor(reason, message, { retryable = false, retryAfterMs } = {}) {
    super(message);
    Object.assign(this, { reason, retryable, retryAfterMs });
  }
}

export class KubeObject {
  #handle;
  constructor(handle) { this.#handle = handle; }
  get apiVersion() { return this.#handle.apiVersion(); }
  get kind() { return this.#handle.kind(); }
  get namespace() { return this.#handle.namespace() ?? undefined; }
  get name() { return this.#handle.name(); }
  get uid() { return this.#handle.uid(); }
  get resourceVersion() { return this.#handle.resourceVersion(); }
  get deletedAt() { return ms(this.#handle.deletionTimeMs()); }
  label(key) { return this.#handle.label(key) ?? undefined; }
  annotation(key) { return this.#handle.annotation(key) ?? undefined; }
  hasFinalizer(name) { return this.#handle.hasFinalizer(name); }
  field(pointer) { return json(this.#handle.field(pointer)); }
  json() { return json(this.#handle.json()); }
}

const wrapped = (handle) => (handle == null ? undefined : new KubeObject(handle));
const visitOf = (job, target) => ({
  job: {
    get namespace() { return job.namespace(); }, get name() { return job.name(); }, get uid() { return job.uid(); },
    get action() { return job.action(); }, get targetCount() { return job.targetCount(); }, get cancelled() { return job.cancelled(); },
  },
  target: {
    get name() { return target.name(); }, get index() { return target.index(); }, get kind() { return target.kind(); },
    get uid() { return target.uid() ?? undefined; }, get containers() { return target.containers(); },
    get attempt() { return target.attempt(); }, get callTry() { return target.callTry(); },
    get startedMs() { return ms(target.startedMs()); }, get deadlineMs() { return ms(target.deadlineMs()); },
  },
  get nowMs() { return ms(job.nowMs()); },
  get object() { return wrapped(target.object()); },
  get extras() { return Object.fromEntries(target.extras()); },
  parameter: (pointer) => json(job.parameter(pointer)),
  config: (pointer) => json(host.config.value(pointer)),
  extra: (key) => target.extra(key) ?? undefined,
  related: (relation, options) => target.related(relation, freshness(options)).map(wrapped),
  get: (apiVersion, kind, name, options) =>
    wrapped(host.cluster.get(apiVersion, kind, options?.namespace, name, freshness(options))),
  serves: (apiVersion, kind) => host.cluster.serves(apiVersion, kind),
  task: (name) => target.task(name) ?? undefined,
});

// Mutations, extras and events are items of one list, which becomes the proposal.
const ref = ({ apiVersion, kind, namespace, name, uid }) => ({ apiVersion, kind, namespace, name, uid });
const nodeName = (node) => (typeof node === "string" ? node : node.name);
const set = (values) => pairs(values).filter(([, value]) => value !== null);
const removed = (values) => pairs(values).filter(([, value]) => value === null).map(([key]) => key);
const mutation = (tag, val) => ({ mutation: { tag, val } });
export const change = (object, { labels, annotations, addFinalizers = [], removeFinalizers = [], keep = false }) =>
  mutation("metadata", {
    object: ref(object), setLabels: set(labels), removeLabels: removed(labels), setAnnotations: set(annotations),
    removeAnnotations: removed(annotations), addFinalizers, removeFinalizers, keep,
  });
export const label = (object, labels, options) => change(object, { labels, ...options });
export const annotate = (object, annotations, options) => change(object, { annotations, ...options });
export const create = (object) => mutation("create", JSON.stringify(object));
export const patch = (object, fields, { subresource } = {}) =>
  mutation("patch", { object: ref(object), subresource, patch: JSON.stringify(fields) });
export const evict = (pod, { gracePeriodSeconds } = {}) => mutation("evict", { pod: ref(pod), gracePeriodSeconds });
export const remove = (object, { gracePeriodSeconds, propagation } = {}) =>
  mutation("delete", { object: ref(object), gracePeriodSeconds, propagation });
export const cordon = (node) => mutation("schedulable", { node: nodeName(node), schedulable: false });
export const uncordon = (node) => mutation("schedulable", { node: nodeName(node), schedulable: true });
export const taint = (node, { key, value = "", effect }) => mutation("taint", { node: nodeName(node), key, value, effect, present: true });
export const untaint = (node, { key, value = "", effect }) => mutation("taint", { node: nodeName(node), key, value, effect, present: false });
export const drain = (node, { gracePeriodSeconds, deleteEmptyDirData = false, force = false } = {}) =>
  mutation("drain", { node: nodeName(node), gracePeriodSeconds, deleteEmptyDirData, force });
export const task = (name, kind, fields) => mutation("task", { name, kind, arguments: JSON.stringify(fields) });
export const other = (name, fields) => mutation("other", [name, JSON.stringify(fields)]);
export const extra = (key, value) => (value == null ? { removeExtra: key } : { setExtra: [key, String(value)] });
export const waitsFor = (word, sentence) => extra("WaitsFor", `${word}: ${sentence.slice(0, 200)}`);
export const event = (reason, message) => ({ event: { severity: "normal", reason, message } });
export const warning = (reason, message) => ({ event: { severity: "warning", reason, message } });

const proposalOf = (answer) => {
  const items = [answer].flat(Infinity).filter(Boolean);
  const wrong = items.find((item) => !(item.mutation || item.setExtra || item.removeExtra || item.event));
  if (wrong) throw new TypeError(`${text(wrong).slice(0, 100)} is no change: use the functions of the SDK, such as label() or extra()`);
  const all = (key) => items.map((item) => item[key]).filter(Boolean);
  return { mutations: all("mutation"), setExtra: all("setExtra"), removeExtra: all("removeExtra"), events: all("event") };
};

const report = (state, changes, checkAfterMs) => ({ state, proposal: proposalOf(changes), checkAfterMs });
export const processing = (changes, { checkAfterMs } = {}) => report({ tag: "processing" }, changes, checkAfterMs);
export const succeeded = (changes) => report({ tag: "succeeded" }, changes);
export const failed = (reason, message, changes) => report({ tag: "failed", val: { reason, message } }, changes);

export const relation = (name, apiVersion, kind, [tag, val]) => ({ name, apiVersion, kind, by: { tag, val } });

const written = (level) => (message, fields) => host?.log.write(level, text(message), pairs(fields).map(([key, value]) => [key, text(value)]));
export const log = { debug: written("debug"), info: written("info"), warn: written("warn"), error: written("error") };

/** Refuses answers that need an event loop, which the host does not have. */
const answered = (name, answer) => {
  if (typeof answer?.then === "function") throw new Failure("PluginIsAsync", `${name} returned a promise, and a call cannot wait: remove async and await from ${name}.`);
  if (typeof answer?.next === "function") throw new Failure("PluginIsAsync", `${name} is a generator: return the changes as an array.`);
  return answer;
};

/** Returns the failure of the contract for anything that a plugin or the host can throw. */
const failureOf = (error) => {
  const read = error?.payload ?? error;
  if (error instanceof Failure || (read?.reason && error?.payload)) {
    const retryable = error instanceof Failure ? error.retryable : read.reason !== "NotDeclared";
    return { retryable, reason: read.reason, message: read.message.slice(0, KEPT), retryAfterMs: read.retryAfterMs };
  }
  const stack = String(error?.stack ?? "").slice(0, 2 * KEPT).trim().split("\n").map((line) => line.trim()).filter((line) => line.startsWith("at ") && !OWN_FRAME.test(line));
  return { retryable: false, reason: "PluginException", message: [String(error).slice(0, KEPT / 2), ...stack].join(" ").slice(0, KEPT), retryAfterMs: undefined };
};

const guarded = (name, call) => (...handles) => {
  try { return call(...handles); } catch (error) { throw failureOf(error); }
};

export const action = (plugin) => {
  const { relations = [], exclusiveExtras = [], setup = () => {}, operate, progress, release = () => {} } = plugin;
  for (const [name, call] of Object.entries({ setup, operate, progress, release })) {
    if (typeof call !== "function") throw new TypeError(`action() needs a function ${name}`);
    if (call.constructor.name !== "Function") throw new TypeError(`${name} is an async function or a generator, and a call cannot wait: make it a plain function`);
  }
  const proposes = (name, call) => guarded(name, (job, target) => proposalOf(answered(name, call(visitOf(job, target)))));
  return {
    setup: guarded("setup", () => {
      const more = answered("setup", setup({ config: (pointer) => json(host.config.value(pointer)) })) ?? [];
      return { relations: [...relations, ...more], exclusiveExtras };
    }),
    operate: proposes("operate", operate),
    progress: guarded("progress", (job, target) => {
      const answer = answered("progress", progress(visitOf(job, target)));
      if (!answer?.state) throw new TypeError("progress returned no report: return processing(), succeeded() or failed()");
      return answer;
    }),
    release: proposes("release", release),
  };
};
