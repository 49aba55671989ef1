import assert from "node:assert/strict";
import { test } from "node:test";
import { Visit, node, pod } from "./oarlock/kit.js";
import plugin from "./plugin.js";

const LABEL = "example.com/node-taint";
const web = (labels) => pod("web-1", { metadata: { labels }, spec: { nodeName: "node-1" } });
const tainted = (...taints) => node("node-1", { spec: { taints } });
const visit = (target, of) => Visit.to(target, { objects: [of], parameters: { taint: "example.com/gpu" } });

test("a pod on a tainted node gets the value of the taint, and then succeeds", () => {
  const first = visit(web(), tainted({ key: "example.com/gpu", value: "broken", effect: "NoSchedule" }));
  const second = first.after(first.operate(plugin));
  assert.equal(second.object.metadata.labels[LABEL], "broken");
  assert.equal(second.operate(plugin).mutations.length, 0);
  assert.equal(second.progress(plugin).state.tag, "succeeded");
});

test("a taint without a value gives its effect", () => {
  const first = visit(web(), tainted({ key: "example.com/gpu", effect: "NoExecute" }));
  assert.deepEqual(first.operate(plugin).mutations[0].val.setLabels, [[LABEL, "NoExecute"]]);
});

test("a pod whose node has lost the taint loses the label", () => {
  const first = visit(web({ [LABEL]: "broken" }), tainted({ key: "example.com/other", effect: "NoSchedule" }));
  const second = first.after(first.operate(plugin));
  assert.equal(second.object.metadata.labels[LABEL], undefined);
  assert.equal(second.progress(plugin).state.tag, "succeeded");
});

test("a pod without a node waits, and a pod that is gone fails", () => {
  const waiting = visit(pod("web-1"), tainted()).progress(plugin);
  assert.equal(waiting.state.tag, "processing");
  assert.match(waiting.proposal.setExtra[0][1], /^Scheduling: /);
  assert.equal(Visit.toGone("web-1", { parameters: { taint: "a" } }).progress(plugin).state.val.reason, "PodNotFound");
});

test("the first read of the node is repeated once the host has the answer", () => {
  const first = visit(web(), tainted()).with({ beforeLook: true });
  assert.throws(() => first.operate(plugin), { reason: "Unavailable", retryable: true });
});
