// A kit to test a plugin with `node --test`: without WebAssembly and without a host. `kit.d.ts` documents each export.
// It refuses reads and proposals with the words of the host. It does not limit time and memory.

import { readFileSync } from "node:fs";
import { Failure, connect } from "./sdk.js";

export const NOW = 1_769_860_800_000;
const NAMESPACE = "default";
const JOB_UID = "uid-of-job";
const HOLD = `hold.oarlock.dev/${JOB_UID}`;
const HOST_EXTRAS = ["Owner", "Node", "EvictedAt", "Released", "ClaimedUID", "Finished", "Plan", "Drain", "WaitsSince"];
const METADATA = ["name", "namespace", "uid", "resourceVersion", "labels", "annotations", "finalizers", "ownerReferences",
  "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];

/** The reason why a call has no proposal or report: a failure of the plugin, or a refusal of the host. */
export class CallFailed extends Error {
  constructor(reason, message, retryable = false) {
    super(`${reason}: ${message}`);
    Object.assign(this, { reason, retryable });
  }
}

const isMap = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const merged = (base, over) => {
  if (!isMap(over)) return over;
  const result = isMap(base) ? { ...base } : {};
  for (const [key, value] of Object.entries(over)) {
    if (value === null) delete result[key]; else result[key] = merged(result[key], value);
  }
  return result;
};
export const object = (apiVersion, kind, namespace, name, fields = {}) => merged(
  { apiVersion, kind, metadata: { name, uid: `uid-of-${name}`, resourceVersion: "1", ...(namespace && { namespace }) } }, fields);
export const pod = (name, fields) => object("v1", "Pod", NAMESPACE, name, fields);
export const node = (name, fields) => object("v1", "Node", undefined, name, fields);

const select = (document, pointer) => {
  if (pointer === "") return document;
  if (!pointer.startsWith("/")) return undefined;
  const step = (value, token) => (Array.isArray(value) || isMap(value) ? value[token.replaceAll("~1", "/").replaceAll("~0", "~")] : undefined);
  return pointer.slice(1).split("/").reduce(step, document);
};
const asText = (value) => (value === undefined ? undefined : JSON.stringify(value));
const sameKind = (one, other) => one.apiVersion === other.apiVersion && one.kind === other.kind;
const isNamed = (document, ref) => sameKind(document, ref) && document.metadata.name === ref.name
  && (document.metadata.namespace ?? null) === (ref.namespace ?? null) && (ref.uid == null || ref.uid === document.metadata.uid);
const matches = (pattern, text) => (pattern.endsWith("*") ? text.startsWith(pattern.slice(0, -1)) : pattern === text);
const covers = (declared, pointer) => (declared.endsWith("*") ? pointer.startsWith(declared.slice(0, -1)) : pointer === declared || pointer.startsWith(`${declared}/`));

const isLabel = (text) => /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(text);
const isSubdomain = (text) => text.length <= 253 && text.split(".").every(isLabel);
const isPart = (text) => /^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$/.test(text);
const isQualified = (text) => { const [name, ...prefix] = text.split("/").reverse(); return isPart(name) && prefix.length < 2 && prefix.every(isSubdomain); };
const isHostKey = (key) => /(^|\.)(oarlock\.dev)\/|^podopslifecycle\.kusionstack\.io\/|\.podopslifecycle\.kusionstack\.io\//.test(key);

/** Checks a value with the part of JSON Schema that most manifests use. */
const invalid = (schema, value, path) => {
  const type = Array.isArray(value) ? "array" : value === null ? "null" : Number.isInteger(value) ? "integer" : isMap(value) ? "object" : typeof value;
  const wanted = schema.type && [schema.type].flat();
  if (wanted && !wanted.includes(type) && !(type === "integer" && wanted.includes("number"))) return `${path}: ${JSON.stringify(value)} is not of type "${wanted.join('", "')}"`;
  if (schema.enum && !schema.enum.some((one) => JSON.stringify(one) === JSON.stringify(value))) return `${path}: ${JSON.stringify(value)} is not one of ${JSON.stringify(schema.enum)}`;
  if (value < schema.minimum) return `${path}: ${value} is less than the minimum of ${schema.minimum}`;
  if (value > schema.maximum) return `${path}: ${value} is greater than the maximum of ${schema.maximum}`;
  if (isMap(value)) {
    const lacking = (schema.required ?? []).find((name) => !(name in value));
    if (lacking) return `${path}: "${lacking}" is a required property`;
    for (const [name, inner] of Object.entries(value)) {
      const below = schema.properties?.[name];
      if (!below && schema.additionalProperties === false) return `${path}: Additional properties are not allowed ('${name}' was unexpected)`;
      const wrong = below && invalid(below, inner, `${path}/${name}`);
      if (wrong) return wrong;
    }
  }
  return Array.isArray(value) && schema.items ? value.map((inner, at) => invalid(schema.items, inner, `${path}/${at}`)).find(Boolean) : undefined;
};

/** Reads `manifest.json` of the plugin, which is beside the folder of the SDK or above it. */
export const manifest = (text) => {
  const found = text ?? ["../manifest.json", "../../manifest.json"].map((path) => {
    try { return readFileSync(new URL(path, import.meta.url), "utf8"); } catch { return undefined; }
  }).find(Boolean);
  if (!found) throw new CallFailed("ManifestInvalid", "there is no manifest.json beside the folder oarlock");
  return { reads: [], writes: [], tasks: [], limits: {}, ...JSON.parse(found) };
};

const readError = (reason, message) => Object.assign(new Error(message), { payload: { reason, message } });

/** The handles and functions of one call, from the memory of a test. */
class Call {
  constructor(visit, rules) { Object.assign(this, { visit, rules, relations: [], exclusive: [], read: [], calls: 0 }); }
  count(more = 1) {
    this.calls += more;
    const most = this.rules.limits.hostCalls ?? 10_000;
    if (this.calls > most) throw new Failure("PluginLimitExceeded", `it called the host more than ${most} times`, { retryable: true });
  }
  counted(handle) { return new Proxy(handle, { get: (of, key) => (this.count(), of[key]) }); }
  declared(of) { return this.rules.reads.filter((rule) => sameKind(rule, of)); }
  objects(live) {
    if (!live) return this.visit.watched;
    if (this.visit.beforeLook) throw readError("Unavailable", "The host looks first, and then repeats the call.");
    return this.visit.live;
  }
  get targetKind() { return this.visit.object ?? { apiVersion: "v1", kind: this.rules.target[0] }; }
  watches(of) { return sameKind(of, this.targetKind) || this.relations.some((one) => sameKind(one, of)); }

  handle(document) {
    const { metadata } = document;
    const kept = { ...document, metadata: Object.fromEntries(Object.entries(metadata).filter(([key]) => METADATA.includes(key))) };
    const place = (pointer) => {
      if (this.declared(document).some((rule) => (rule.fields ?? []).some((field) => covers(field, pointer)))) return true;
      if (pointer === "/apiVersion" || pointer === "/kind" || pointer === "/metadata" || pointer.startsWith("/metadata/")) return true;
      if (pointer !== "" && !pointer.startsWith("/")) return false;
      throw readError("NotDeclared", `the manifest does not declare field ${JSON.stringify(pointer)} of ${document.apiVersion} ${document.kind}; add it to its \`reads\``);
    };
    return this.counted({
      apiVersion: () => document.apiVersion, kind: () => document.kind, namespace: () => metadata.namespace, name: () => metadata.name,
      uid: () => metadata.uid, resourceVersion: () => metadata.resourceVersion, label: (key) => metadata.labels?.[key],
      annotation: (key) => metadata.annotations?.[key], hasFinalizer: (name) => (metadata.finalizers ?? []).includes(name),
      deletionTimeMs: () => metadata.deletionTimestamp && Date.parse(metadata.deletionTimestamp),
      field: (pointer) => (place(pointer) ? asText(select(kept, pointer)) : undefined),
      json: () => {
        const shown = { apiVersion: document.apiVersion, kind: document.kind, metadata: kept.metadata };
        for (const field of this.declared(document).flatMap((rule) => rule.fields ?? [])) {
          const path = field.replace(/\/?\*$/, "").slice(1).split("/");
          let [from, into] = [document, shown];
          for (const key of path.slice(0, -1)) { if (!isMap(from[key])) break; from = from[key]; into = into[key] ??= {}; }
          const last = path.at(-1);
          if (from[last] !== undefined) into[last] = from[last];
        }
        return JSON.stringify(shown);
      },
    });
  }
  found(document) { return document && this.handle(document); }
  get job() {
    const { parameters, cancelled, nowMs } = this.visit;
    return this.counted({
      namespace: () => NAMESPACE, name: () => "job", uid: () => JOB_UID, action: () => this.rules.action, nowMs: () => nowMs,
      parameter: (pointer) => asText(select(parameters, pointer)), targetCount: () => 1, cancelled: () => cancelled,
    });
  }
  get target() {
    const { visit } = this;
    return this.counted({
      name: () => visit.name, index: () => 0, kind: () => this.targetKind.kind, uid: () => visit.uid, object: () => this.found(visit.object),
      containers: () => visit.containers, extra: (key) => visit.extras[key], extras: () => Object.entries(visit.extras).sort(),
      attempt: () => visit.attempt, callTry: () => visit.callTry, startedMs: () => visit.startedMs, deadlineMs: () => visit.deadlineMs,
      related: (name, freshness) => this.related(name, freshness === "live"), task: (name) => visit.tasks[name],
    });
  }
  related(name, live) {
    const relation = this.relations.find((one) => one.name === name);
    if (!relation) throw readError("NotDeclared", `\`setup\` declared no relation ${JSON.stringify(name)}`);
    const { tag, val } = relation.by;
    const { visit } = this;
    if (tag === "same-controller" && !visit.successors) throw new Failure("KitLacks", `In this test, relation ${name} needs the objects of the same controller: give the visit \`successors\`.`);
    if (tag === "owner-is-target" && !visit.uid) throw new Failure("KitLacks", `In this test, relation ${name} needs the UID of the target: give the visit a \`uid\`.`);
    const held = this.exclusive.map((key) => visit.extras[key]).filter(Boolean);
    const owned = (document, uid) => (document.metadata.ownerReferences ?? []).some((owner) => owner.uid === uid);
    const belongs = {
      label: ({ metadata }) => [visit.name, ...held].includes(metadata.labels?.[val]), extra: ({ metadata }) => metadata.name === visit.extras[val],
      field: (document) => select(document, val) === visit.name, parameter: ({ metadata }) => metadata.name === select(visit.parameters, val),
      "owner-is-job": (document) => owned(document, JOB_UID), "owner-is-target": (document) => owned(document, visit.uid),
      "same-controller": ({ metadata }) => visit.successors.includes(metadata.name),
    }[tag];
    const onNode = tag === "field" && val === "/spec/nodeName" && this.targetKind.kind === "Node";
    const here = (document) => onNode || document.metadata.namespace === NAMESPACE;
    const free = ({ metadata }) => !visit.claimed.includes(metadata.name) || held.includes(metadata.name);
    const key = ({ metadata }) => `${metadata.namespace ?? ""}/${metadata.name}`;
    const all = this.objects(live).filter((document) => sameKind(document, relation) && here(document) && free(document) && belongs(document));
    this.count(all.length);
    return all.sort((one, two) => (key(one) < key(two) ? -1 : 1)).map((document) => this.handle(document));
  }
  get host() {
    const { visit } = this;
    return {
      log: { enabled: () => true, write: (level, message, fields) => console.log(level, message, ...fields) },
      config: { value: (pointer) => (this.count(), asText(select(visit.config, pointer))) },
      cluster: {
        get: (apiVersion, kind, namespace, name, freshness) => {
          this.count();
          const ref = { apiVersion, kind, namespace, name };
          if (!this.declared(ref).length) throw readError("NotDeclared", `the manifest does not declare reads of ${apiVersion} ${kind}; add them to its \`reads\``);
          if (!isSubdomain(name) || (namespace != null && !isLabel(namespace))) return undefined;
          const found = this.objects(freshness === "live" || !this.watches(ref)).find((document) => isNamed(document, ref));
          this.read.push(ref);
          return this.found(found);
        },
        serves: (apiVersion, kind) => {
          this.count();
          if (!this.watches({ apiVersion, kind })) this.objects(true);
          return !visit.unserved.includes(`${apiVersion} ${kind}`);
        },
      },
    };
  }

  // Refusals of proposals, as the host words them.
  refuse(proposal) {
    const { mutations, setExtra, removeExtra, events } = proposal;
    if (mutations.length > 64) return `${mutations.length} mutations in one proposal; at most 64 are taken`;
    if (events.length > 16) return `${events.length} events in one proposal; at most 16 are taken`;
    const wrong = mutations.map((one) => this.refuseMutation(one)).find(Boolean);
    if (wrong) return wrong;
    for (const key of [...removeExtra, ...setExtra.map(([name]) => name)]) {
      if (HOST_EXTRAS.includes(key) || key.startsWith("Task/")) return `extra ${key} belongs to the host`;
      if (!/^[A-Za-z0-9_./-]{1,63}$/.test(key)) return `extra ${JSON.stringify(key)}: a key has at most 63 letters, digits, \`-\`, \`_\`, \`.\` and \`/\``;
    }
    const control = setExtra.find(([, value]) => /\p{Cc}/u.test(value));
    if (control) return `extra ${control[0]}: its value has control characters`;
    const after = Object.entries({ ...this.visit.extras, ...Object.fromEntries(removeExtra.map((key) => [key, undefined])), ...Object.fromEntries(setExtra) });
    const bytes = after.filter(([key, value]) => value !== undefined && !HOST_EXTRAS.includes(key) && !key.startsWith("Task/"))
      .reduce((sum, [key, value]) => sum + Buffer.byteLength(key) + Buffer.byteLength(value), 0);
    return bytes > 1024 && setExtra.length ? `the extras of the target would have ${bytes} bytes; at most 1024 are stored` : undefined;
  }
  refuseMutation({ tag, val }) {
    const onNode = (name) => this.refuseNode(tag, name);
    switch (tag) {
      case "metadata": return this.refuseMetadata(val);
      case "create": return this.refuseCreate(JSON.parse(val));
      case "patch": return this.refusePatch(val);
      case "evict": return sameKind(val.pod, { apiVersion: "v1", kind: "Pod" }) ? this.refuseObject("evict", val.pod) : `evict of ${val.pod.kind} ${val.pod.name}: only pods can be evicted`;
      case "delete": return this.refuseObject("delete", val.object);
      case "schedulable": case "drain": return onNode(val.node);
      case "taint": {
        const wrong = onNode(val.node);
        if (wrong) return wrong;
        if (!isQualified(val.key)) return `taint ${JSON.stringify(val.key)} is not a qualified name`;
        if (val.key.startsWith("node.kubernetes.io/")) return `taint ${val.key} belongs to the controllers of nodes`;
        return ["NoSchedule", "PreferNoSchedule", "NoExecute"].includes(val.effect) ? undefined : `taint ${val.key}: ${JSON.stringify(val.effect)} is no effect; it is one of NoSchedule, PreferNoSchedule, NoExecute`;
      }
      case "task": return this.rules.tasks.some((rule) => rule.name === val.kind) ? undefined : `task ${val.name}: ${val.kind}: the manifest of plugin ${this.rules.name} does not ask for it; add it to its \`tasks\``;
      default: return `this host does not carry out \`${val[0]}\``;
    }
  }
  asks(verb, of, test = () => true) { return this.rules.writes.some((rule) => rule.verb === verb && sameKind(rule, of) && test(rule)); }
  unasked(what) { return `${what}: the manifest of plugin ${this.rules.name} does not ask for it; add it to its \`writes\``; }
  targetRef() { return this.visit.object ?? object("v1", this.targetKind.kind, this.targetKind.kind === "Node" ? undefined : NAMESPACE, this.visit.name); }
  refuseNode(verb, name) {
    const ref = { apiVersion: "v1", kind: "Node", name };
    const target = this.targetRef();
    return isNamed(target, ref) ? this.refuseObject(verb, ref) : `${verb} of Node ${name}: the target is ${target.kind} ${target.metadata.name}`;
  }
  refuseObject(verb, ref) {
    const shown = `${ref.kind} ${ref.name}`;
    if (!isSubdomain(ref.name)) return `${verb}: ${JSON.stringify(ref.name)} is not the name of an object`;
    if (ref.apiVersion.startsWith("oarlock.dev/") || ref.kind === "OperationJob") return `${verb} of ${shown}: objects of this kind belong to the host`;
    if (!this.asks(verb, ref)) return this.unasked(`${verb} of ${ref.apiVersion} ${ref.kind}`);
    if (ref.namespace != null && ref.namespace !== NAMESPACE) return `${verb} of ${shown}: the job is in namespace ${NAMESPACE}`;
    if (verb === "create") return undefined;
    const target = this.targetRef();
    if (sameKind(ref, target)) {
      if (!isNamed(target, { ...ref, uid: undefined })) return `${verb} of ${shown}: the target is ${target.kind} ${target.metadata.name}`;
      return ref.uid != null && ref.uid !== this.visit.uid ? `${verb} of ${shown}: it has another UID than the target` : undefined;
    }
    const bare = { ...ref, uid: undefined };
    const watched = this.watches(ref);
    if (!watched && !this.read.some((one) => sameKind(one, ref) && one.name === ref.name)) return `${verb} of ${shown}: the plugin has not seen it; read it with \`get\` first`;
    const owners = (watched ? this.visit.watched : this.visit.live).find((document) => isNamed(document, bare))?.metadata.ownerReferences ?? [];
    const other = owners.find((owner) => owner.kind === "OperationJob" && owner.uid !== JOB_UID);
    return other ? `${verb} of ${shown}: it belongs to job ${other.name}` : undefined;
  }
  refuseMetadata(val) {
    const wrong = this.refuseObject("metadata", val.object);
    if (wrong) return wrong;
    const parts = [["label", [...val.setLabels.map(([key]) => key), ...val.removeLabels]],
      ["annotation", [...val.setAnnotations.map(([key]) => key), ...val.removeAnnotations]], ["finalizer", [...val.addFinalizers, ...val.removeFinalizers]]];
    for (const [what, keys] of parts) {
      for (const key of keys) {
        if (!isQualified(key)) return `${what} ${JSON.stringify(key)} is not a qualified name`;
        if (isHostKey(key)) return `${what} ${key} belongs to the host`;
        if (!this.asks("metadata", val.object, (rule) => (rule[`${what}s`] ?? []).some((pattern) => matches(pattern, key)))) return this.unasked(`metadata of ${val.object.kind}: ${what} ${key}`);
      }
    }
    const bad = val.setLabels.find(([, value]) => value !== "" && !isPart(value));
    return bad && `label ${bad[0]}: ${JSON.stringify(bad[1])} is not a label value`;
  }
  refuseCreate({ apiVersion, kind, metadata = {} }) {
    if (!apiVersion || !kind) return "create: the object has no `apiVersion` or no `kind`";
    if (!metadata.name) return `create of ${kind}: the object has no name`;
    const own = ["generateName", "ownerReferences", "uid", "resourceVersion", "finalizers", "managedFields"].find((field) => field in metadata);
    return own ? `create of ${kind}: leave out metadata.${own}` : this.refuseObject("create", { apiVersion, kind, namespace: metadata.namespace, name: metadata.name });
  }
  refusePatch({ object: ref, subresource, patch }) {
    const wrong = this.refuseObject("patch", ref);
    if (wrong) return wrong;
    const fields = JSON.parse(patch);
    if (!isMap(fields)) return `patch of ${ref.kind} ${ref.name}: the patch is not a JSON object`;
    const own = ["metadata", "apiVersion", "kind"].find((field) => field in fields);
    if (own) return `patch of ${ref.kind} ${ref.name}: it may not change \`${own}\`; use a metadata change`;
    const asked = subresource == null || this.asks("patch", ref, (rule) => (rule.subresources ?? []).some((pattern) => matches(pattern, subresource)));
    return asked ? undefined : this.unasked(`patch of ${ref.kind}: subresource ${subresource}`);
  }
  refuseRelations() {
    for (const { name, apiVersion, kind, by } of this.relations) {
      const rules = this.declared({ apiVersion, kind });
      if (!rules.length) return `relation ${name} is about ${apiVersion} ${kind}; add it to \`reads\` of the manifest`;
      if (by.tag === "field" && !rules.some((rule) => (rule.fields ?? []).some((field) => covers(field, by.val)))) return `relation ${name} matches by ${by.val} of ${kind}; add it to \`reads\` of the manifest`;
    }
    return undefined;
  }
}

export class Visit {
  constructor(options = {}) {
    const { object: target, name, objects = [], unseen = [], lost = [] } = options;
    const all = target ? [target, ...objects] : objects;
    Object.assign(this, {
      parameters: {}, config: {}, extras: {}, containers: [], tasks: {}, claimed: [], unserved: [], attempt: 1, callTry: 1, cancelled: false,
      nowMs: NOW, startedMs: NOW - 60_000, beforeLook: false, uid: target?.metadata.uid, name: name ?? target?.metadata.name,
      watched: [...all, ...lost], live: [...all, ...unseen], ...options,
    });
  }
  static to(target, options) { return new Visit({ ...options, object: target }); }
  static toGone(name, options) { return new Visit({ ...options, name }); }
  with(options) {
    const { objects = [], unseen = [], lost = [] } = options;
    const next = new Visit({ ...structuredClone({ ...this }), ...options });
    next.watched.push(...objects, ...lost);
    next.live.push(...objects, ...unseen);
    return next;
  }

  operate(plugin) { return this.#call(plugin, "operate"); }
  progress(plugin) { return this.#call(plugin, "progress"); }
  release(plugin) { return this.#call(plugin, "release"); }

  #call(plugin, name) {
    const rules = this.manifest ? manifest(JSON.stringify(this.manifest)) : manifest();
    const wrong = invalid(rules.parameters ?? { additionalProperties: false }, this.parameters, "spec.parameters");
    if (wrong) throw new CallFailed("ParametersInvalid", wrong);
    const config = invalid(rules.config ?? { additionalProperties: false }, this.config, "config");
    if (config) throw new CallFailed("ConfigInvalid", config);
    const call = new Call(this, rules);
    connect(call.host);
    const run = (of, ...handles) => {
      try { return of(...handles); } catch (failure) {
        if (failure instanceof Error) throw failure;
        throw new CallFailed(failure.reason, failure.message, failure.retryable);
      }
    };
    const { relations, exclusiveExtras } = run(plugin.setup);
    Object.assign(call, { relations, exclusive: exclusiveExtras });
    const refusal = call.refuseRelations();
    if (refusal) throw new CallFailed("RegistrationRefused", refusal);
    const answer = run(plugin[name], call.job, call.target);
    if (JSON.stringify(answer).length > (rules.limits.outputBytes ?? 262_144)) throw new CallFailed("PluginLimitExceeded", `its answer has more than ${rules.limits.outputBytes ?? 262_144} bytes`, true);
    const denied = call.refuse(answer.proposal ?? answer);
    if (denied) throw new CallFailed("MutationDenied", denied);
    return answer;
  }

  after(answer) {
    const { mutations, setExtra, removeExtra } = answer.proposal ?? answer;
    const next = this.with({ callTry: 1 });
    removeExtra.forEach((key) => delete next.extras[key]);
    Object.assign(next.extras, Object.fromEntries(setExtra));
    mutations.forEach((mutation) => next.#make(mutation));
    return next;
  }
  gone() {
    const of = (document) => document.metadata.uid !== this.uid;
    return this.with({ object: undefined, watched: this.watched.filter(of), live: this.live.filter(of) });
  }
  #edit(ref, change) {
    const raise = (document) => { const version = String(Number(document.metadata.resourceVersion) + 1); return merged(change(structuredClone(document)), { metadata: { resourceVersion: version } }); };
    const edited = (document) => (isNamed(document, ref) ? raise(document) : document);
    Object.assign(this, { watched: this.watched.map(edited), live: this.live.map(edited), object: this.object && edited(this.object) });
  }
  #make({ tag, val }) {
    const nodeRef = { apiVersion: "v1", kind: "Node", name: val.node };
    // The host undoes changes only on the target.
    const keep = val.keep || !(this.object && val.object && isNamed(this.object, val.object));
    if (tag === "metadata") this.#edit(val.object, (document) => marked(document, { ...val, keep }));
    if (tag === "patch") this.#edit(val.object, (document) => merged(document, JSON.parse(val.patch)));
    if (tag === "schedulable") this.#edit(nodeRef, (document) => merged(document, { spec: { unschedulable: !val.schedulable } }));
    if (tag === "taint") this.#edit(nodeRef, (document) => {
      const others = (document.spec?.taints ?? []).filter((one) => one.key !== val.key || one.effect !== val.effect);
      return merged(document, { spec: { taints: val.present ? [...others, { key: val.key, value: val.value, effect: val.effect }] : others } });
    });
    if (tag === "create") {
      const document = JSON.parse(val);
      const made = object(document.apiVersion, document.kind, NAMESPACE, document.metadata.name, document);
      made.metadata.ownerReferences = [{ apiVersion: "apps.kusionstack.io/v1alpha1", kind: "OperationJob", name: "job", uid: JOB_UID, controller: true }];
      if (!this.live.some((one) => isNamed(one, { ...made, ...made.metadata, uid: undefined }))) { this.watched.push(made); this.live.push(made); }
    }
    if (tag === "evict" || tag === "delete") {
      const ref = val.pod ?? val.object;
      const stays = (document) => !isNamed(document, ref) || ref.kind === "Pod" || document.metadata.finalizers?.length > 0;
      Object.assign(this, { watched: this.watched.filter(stays), live: this.live.filter(stays) });
      const seconds = (document) => val.gracePeriodSeconds ?? (ref.kind === "Pod" ? document.spec?.terminationGracePeriodSeconds ?? 30 : 0);
      const at = (document) => new Date(this.nowMs + seconds(document) * 1000).toISOString().replace(".000", "");
      this.#edit(ref, (document) => (document.metadata.deletionTimestamp ? document : merged(document, { metadata: { deletionTimestamp: at(document) } })));
    }
  }
}

/** Sets and removes marks on an object, with the list of the marks that the job holds. */
const marked = (document, val) => {
  const held = new Set(JSON.parse(document.metadata.annotations?.[HOLD] ?? "[]"));
  const { metadata } = document;
  for (const [field, word, set, remove] of [["labels", "label", val.setLabels, val.removeLabels], ["annotations", "annotation", val.setAnnotations, val.removeAnnotations]]) {
    for (const [key, value] of set) {
      if (!val.keep && metadata[field]?.[key] === undefined) held.add(`${word}:${key}`);
      metadata[field] = { ...metadata[field], [key]: value };
    }
    for (const key of remove) if (held.delete(`${word}:${key}`) || val.keep) delete metadata[field]?.[key];
  }
  const names = new Set(metadata.finalizers ?? []);
  for (const name of val.addFinalizers) { if (!val.keep && !names.has(name)) held.add(`finalizer:${name}`); names.add(name); }
  for (const name of val.removeFinalizers) if (held.delete(`finalizer:${name}`) || val.keep) names.delete(name);
  if (names.size || metadata.finalizers) metadata.finalizers = [...names];
  if (held.size) metadata.annotations = { ...metadata.annotations, [HOLD]: JSON.stringify([...held].sort()) };
  else if (metadata.annotations) delete metadata.annotations[HOLD];
  return document;
};
