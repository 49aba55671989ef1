import assert from "node:assert/strict";
import { test } from "node:test";
import { Visit, pod } from "../oarlock/kit.js";
import { Failure, action, label, processing, succeeded } from "../oarlock/sdk.js";

const manifest = {
  schema: 1, name: "a", version: "0.1.0", action: "A", target: ["Pod"],
  writes: [{ verb: "metadata", apiVersion: "v1", kind: "Pod", labels: ["a.b/c"], finalizers: ["a.b/guard"], reason: "r" }],
};
const visit = (options) => Visit.to(pod("web"), { manifest, ...options });
const operating = (operate) => action({ operate, progress: () => succeeded() });
const failure = (operate) => {
  try { return visit().operate(operating(operate)); } catch (error) { return error; }
};

test("an exception becomes a failure with its stack", () => {
  const failed = failure(function deep() { throw new RangeError("boom"); });
  assert.equal(failed.reason, "PluginException");
  assert.match(failed.message, /RangeError: boom at deep \(.*sdk\.test\.js:\d+:\d+\)/);
});

test("a message of a megabyte is cut", () => {
  const failed = failure(() => { throw new Error("x".repeat(1 << 20)); });
  assert.ok(failed.message.length < 1100, String(failed.message.length));
});

test("whatever is thrown becomes a failure", () => {
  for (const thrown of [undefined, null, 1, "text", { a: 1 }]) assert.equal(failure(() => { throw thrown; }).reason, "PluginException");
});

test("a failure of the plugin keeps its reason and whether the host repeats the call", () => {
  const failed = failure(() => { throw new Failure("NotYet", "Wait.", { retryable: true }); });
  assert.deepEqual([failed.reason, failed.retryable], ["NotYet", true]);
});

test("async functions and generators are refused when the module is loaded", () => {
  for (const operate of [async () => {}, function* () {}, async function* () {}]) assert.throws(() => operating(operate), /async function or a generator/);
  assert.throws(() => action({ progress: () => succeeded() }), /needs a function operate/);
});

test("a promise and a generator are refused when they are returned", () => {
  assert.equal(failure(() => Promise.resolve()).reason, "PluginIsAsync");
  assert.equal(failure(() => (function* () { yield 1; })()).reason, "PluginIsAsync");
});

test("an answer that is no change is named", () => {
  assert.match(failure(() => ({ nonsense: 1 })).message, /is no change/);
  const plugin = action({ operate: () => {}, progress: () => "done" });
  assert.throws(() => visit().progress(plugin), /progress returned no report/);
});

test("nothing, one change and nested lists are proposals", () => {
  const count = (operate) => visit().operate(operating(operate)).mutations.length;
  assert.equal(count(() => undefined), 0);
  assert.equal(count(() => false), 0);
  assert.equal(count(({ object }) => label(object, { "a.b/c": "1" })), 1);
  assert.equal(count(({ object }) => [null, [label(object, { "a.b/c": "1" })]]), 1);
});

test("a mark is a hold, and its removal takes it off, but a mark of another stays", () => {
  const plugin = action({
    operate: ({ object }) => label(object, { "a.b/c": "1" }),
    progress: () => processing(),
    release: ({ object }) => label(object, { "a.b/c": null }),
  });
  const marked = visit().after(visit().operate(plugin));
  assert.equal(marked.object.metadata.labels["a.b/c"], "1");
  assert.match(marked.object.metadata.annotations["hold.oarlock.dev/uid-of-job"], /label:a.b\/c/);
  assert.equal(marked.after(marked.release(plugin)).object.metadata.labels["a.b/c"], undefined);
  const foreign = Visit.to(pod("web", { metadata: { labels: { "a.b/c": "theirs" } } }), { manifest });
  assert.equal(foreign.after(foreign.release(plugin)).object.metadata.labels["a.b/c"], "theirs");
});
