import assert from "node:assert/strict";
import { test } from "node:test";
import { Visit, pod } from "./oarlock/kit.js";
import plugin from "./plugin.js";

test("a pod is marked and then succeeds", () => {
  const first = Visit.to(pod("web-1"));
  const mark = first.operate(plugin);
  assert.equal(mark.mutations.length, 1);
  const second = first.after(mark);
  assert.equal(second.operate(plugin).mutations.length, 0);
  assert.equal(second.progress(plugin).state.tag, "succeeded");
});

test("a pod that is gone fails", () => {
  assert.equal(Visit.toGone("web-1").progress(plugin).state.tag, "failed");
});
