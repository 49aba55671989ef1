/** The JavaScript SDK for Oarlock plugins. The functions of the contract are documented in `wit/`. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** Names one Kubernetes object. With a UID, a mutation never changes a later object of the same name. */
export interface ObjectRef {
  readonly apiVersion: string;
  readonly kind: string;
  readonly namespace?: string;
  readonly name: string;
  readonly uid?: string;
}

/** A Kubernetes object as it stood when the round began. */
export interface KubeObject extends ObjectRef {
  readonly uid: string;
  /** The resource version. Compare it for equality only. */
  readonly resourceVersion: string;
  /** The deletion time, in milliseconds since 1970, or `undefined` if nobody deletes the object. */
  readonly deletedAt: number | undefined;
  label(key: string): string | undefined;
  annotation(key: string): string | undefined;
  hasFinalizer(name: string): boolean;
  /** Returns the value at a JSON Pointer, such as `/spec/nodeName`. Throws if the manifest does not declare the field. */
  field<T = any>(pointer: string): T | undefined;
  /** Returns the declared fields as one document. */
  json<T = any>(): T;
}

/** The status of a task of the host. `state` is `Waiting`, `Running`, `Succeeded` or `Failed`. */
export interface TaskStatus {
  state: string;
  exitCode?: number | null;
  output: string;
  message: string;
}

/** How new an answer has to be. Read `live` before you decide from the absence of an object. */
export interface ReadOptions {
  live?: boolean;
}

/** Everything that a call can read. */
export interface Visit {
  readonly job: {
    readonly namespace: string; readonly name: string; readonly uid: string;
    readonly action: string; readonly targetCount: number; readonly cancelled: boolean;
  };
  readonly target: {
    readonly name: string; readonly index: number; readonly kind: string; readonly uid: string | undefined; readonly containers: string[];
    readonly attempt: number; readonly callTry: number; readonly startedMs: number; readonly deadlineMs: number | undefined;
  };
  /** The time at which the round began, in milliseconds since 1970. */
  readonly nowMs: number;
  /** The object of the target, or `undefined` once it is gone. */
  readonly object: KubeObject | undefined;
  /** Everything that earlier proposals and the host stored for this target. */
  readonly extras: Record<string, string>;
  extra: (key: string) => string | undefined;
  /** Returns a parameter of the job at a JSON Pointer, such as `/who`. */
  parameter: <T = any>(pointer: string) => T | undefined;
  /** Returns a setting of the grant at a JSON Pointer. */
  config: <T = any>(pointer: string) => T | undefined;
  /** Returns the objects of a relation. */
  related: (relation: string, options?: ReadOptions) => KubeObject[];
  /** Reads one object by its name. `undefined` means that it does not exist. Throws if the manifest does not declare the kind. */
  get: (apiVersion: string, kind: string, name: string, options?: ReadOptions & { namespace?: string }) => KubeObject | undefined;
  /** Returns true if the cluster serves a kind. */
  serves: (apiVersion: string, kind: string) => boolean;
  task: (name: string) => TaskStatus | undefined;
}

/** One change of a proposal: a mutation, an extra or an event. */
export type Change = { mutation: unknown } | { setExtra: [string, string] } | { removeExtra: string } | { event: unknown };
/** Nothing, one change, or a list of changes. A false entry counts as nothing, so that `condition && label(...)` works. */
export type Changes = Change | false | null | undefined | void | "" | Changes[];

export interface Keep {
  /** `true` keeps the marks after the job. Otherwise the host removes them when it releases the target. */
  keep?: boolean;
}
type Marks = Record<string, string | null>;
type Taint = { key: string; value?: string; effect: "NoSchedule" | "PreferNoSchedule" | "NoExecute" };

/** Sets labels, annotations and finalizers. A value `null` removes a key. */
export function change(object: ObjectRef, marks: Keep & { labels?: Marks; annotations?: Marks; addFinalizers?: string[]; removeFinalizers?: string[] }): Change;
/** Sets labels. A value `null` removes a label. */
export function label(object: ObjectRef, labels: Marks, options?: Keep): Change;
/** Sets annotations. A value `null` removes an annotation. */
export function annotate(object: ObjectRef, annotations: Marks, options?: Keep): Change;
/** Creates an object, unless it exists. */
export function create(object: object): Change;
/** Changes an object by a JSON Merge Patch. */
export function patch(object: ObjectRef, fields: object, options?: { subresource?: string }): Change;
/** Evicts a Pod. The host honours disruption budgets. */
export function evict(pod: ObjectRef, options?: { gracePeriodSeconds?: number }): Change;
/** Deletes an object. */
export function remove(object: ObjectRef, options?: { gracePeriodSeconds?: number; propagation?: "background" | "foreground" | "orphan" }): Change;
/** Cordons a Node. */
export function cordon(node: string | ObjectRef): Change;
/** Uncordons a Node that this job cordoned. */
export function uncordon(node: string | ObjectRef): Change;
/** Adds a taint to a Node. */
export function taint(node: string | ObjectRef, taint: Taint): Change;
/** Removes a taint from a Node. */
export function untaint(node: string | ObjectRef, taint: Taint): Change;
/** Drains a Node. Propose it at each visit until the extra `Drain` says that the drain is done. */
export function drain(node: string | ObjectRef, options?: { gracePeriodSeconds?: number; deleteEmptyDirData?: boolean; force?: boolean }): Change;
/** Starts a task of the host, unless a task of its name exists. */
export function task(name: string, kind: string, fields: object): Change;
/** Proposes a mutation that this SDK does not know. A host that does not know it refuses the proposal. */
export function other(name: string, fields: unknown): Change;
/** Stores a value for this target, or removes it (`null`). The value says what the plugin saw or intends, not what it did. */
export function extra(key: string, value: string | number | boolean | null): Change;
/** Tells people what the target waits for: a CamelCase word and a sentence. */
export function waitsFor(word: string, sentence: string): Change;
/** Records an event on the job. */
export function event(reason: string, message: string): Change;
/** Records a warning on the job. */
export function warning(reason: string, message: string): Change;

/** The answer of `progress`. */
export interface Report {
  state: { tag: "processing" | "succeeded" } | { tag: "failed"; val: { reason: string; message: string } };
  proposal: Proposal;
  checkAfterMs: number | undefined;
}
/** The changes of a call, in the form of the contract. */
export interface Proposal {
  mutations: { tag: string; val: any }[];
  setExtra: [string, string][];
  removeExtra: string[];
  events: { severity: "normal" | "warning"; reason: string; message: string }[];
}
/** Reports that the target has not ended. The host visits it again after `checkAfterMs` at the latest. */
export function processing(changes?: Changes, options?: { checkAfterMs?: number }): Report;
/** Reports an observed success. */
export function succeeded(changes?: Changes): Report;
/** Reports a failure that another try would not cure. */
export function failed(reason: string, message: string, changes?: Changes): Report;

/** Ends a call without an answer. The host repeats the call if `retryable`, and otherwise fails the attempt. */
export class Failure extends Error {
  constructor(reason: string, message: string, options?: { retryable?: boolean; retryAfterMs?: number });
  readonly reason: string;
  readonly retryable: boolean;
  readonly retryAfterMs: number | undefined;
}

/** How the objects of a relation match a target, as in `relation-key` of the contract. */
export type RelationKey =
  | ["label" | "extra" | "field" | "parameter", string]
  | ["owner-is-job"] | ["owner-is-target"] | ["same-controller"] | ["other", [string, string]];
export interface Relation { name: string; apiVersion: string; kind: string; by: { tag: string; val?: unknown } }
/** Declares a kind of object that the plugin needs to see next to its target. */
export function relation(name: string, apiVersion: string, kind: string, by: RelationKey): Relation;

type Write = (message: string, fields?: Record<string, unknown>) => void;
/** Writes to the log of the host. `console.log` does too. */
export const log: { debug: Write; info: Write; warn: Write; error: Write };

/** A plugin, as the component exports it. Only tests call its functions. */
export interface Plugin {
  setup(): { relations: Relation[]; exclusiveExtras: string[] };
  operate(job: unknown, target: unknown): Proposal;
  progress(job: unknown, target: unknown): Report;
  release(job: unknown, target: unknown): Proposal;
}

/** Makes a plugin. Each exception of a function becomes a failure of the call, and its message has the stack. */
export function action(plugin: {
  relations?: Relation[];
  /** Keys of extras whose value, the name of an object, only one target may hold. */
  exclusiveExtras?: string[];
  /** Checks the settings of the grant, and returns the relations that they add. Throw a `Failure` to refuse them. */
  setup?: (settings: { config: Visit["config"] }) => Relation[] | void;
  /** Returns the changes that the target still needs, or nothing. */
  operate: (visit: Visit) => Changes;
  /** Returns how far the target is. */
  progress: (visit: Visit) => Report;
  /** Returns the changes that undo what the host cannot undo alone. */
  release?: (visit: Visit) => Changes;
}): Plugin;

export function connect(functions: unknown): void;
