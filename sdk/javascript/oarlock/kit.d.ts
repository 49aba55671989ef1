/** A kit to test a plugin natively. It refuses reads and proposals with the words of the host. It does not limit time and memory. */

import type { Plugin, Proposal, Report, TaskStatus } from "./sdk.js";

/** The default time of a visit: 2026-01-31T12:00:00Z. */
export const NOW: number;

/** A Kubernetes object of a test. */
export interface Sample { apiVersion: string; kind: string; metadata: Record<string, any>; [field: string]: any }
/** Returns a Pod in the namespace `default` with the UID `uid-of-<name>` and these fields. */
export function pod(name: string, fields?: object): Sample;
/** Returns a Node with the UID `uid-of-<name>` and these fields. */
export function node(name: string, fields?: object): Sample;
/** Returns an object of any kind. */
export function object(apiVersion: string, kind: string, namespace: string | undefined, name: string, fields?: object): Sample;

/** Why a call has no answer: a failure of the plugin, or a refusal of the host such as `MutationDenied` or `ParametersInvalid`. */
export class CallFailed extends Error {
  readonly reason: string;
  readonly retryable: boolean;
}

export interface VisitOptions {
  name?: string;
  uid?: string;
  parameters?: object;
  config?: object;
  extras?: Record<string, string>;
  containers?: string[];
  tasks?: Record<string, TaskStatus>;
  attempt?: number;
  callTry?: number;
  cancelled?: boolean;
  nowMs?: number;
  startedMs?: number;
  deadlineMs?: number;
  /** Objects of the cluster, besides the target. */
  objects?: Sample[];
  /** Objects that only a live read finds. */
  unseen?: Sample[];
  /** Objects that are gone, but still in the watch cache. */
  lost?: Sample[];
  /** Names that other targets hold. */
  claimed?: string[];
  /** Names of the objects of the relation `same-controller`. */
  successors?: string[];
  /** Kinds that the cluster does not serve, such as `apps/v1 ReplicaSet`. */
  unserved?: string[];
  /** Lets every live read fail with `Unavailable`, as the host does at first. */
  beforeLook?: boolean;
  /** The manifest, instead of the file `manifest.json` of the plugin. */
  manifest?: object;
}

/** One visit to one target. */
export class Visit {
  static to(target: Sample, options?: VisitOptions): Visit;
  static toGone(name: string, options?: VisitOptions): Visit;
  /** Returns the visit with other facts. */
  with(options: VisitOptions): Visit;
  /** Calls `operate`. Throws `CallFailed` if the call fails or the host would refuse the answer. */
  operate(plugin: Plugin): Proposal;
  progress(plugin: Plugin): Report;
  release(plugin: Plugin): Proposal;
  /** Returns the next visit, after the host has applied an answer. */
  after(answer: Proposal | Report): Visit;
  /** Removes the object of the target. */
  gone(): Visit;
}

/** Reads the manifest of the plugin. */
export function manifest(text?: string): any;
