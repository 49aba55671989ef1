// Plays the scenarios that the kits of all languages share: each kit refuses the same deeds with the words of the host.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Visit, object, pod } from "../oarlock/kit.js";
import { action, create, drain, event, evict, extra, label, patch, remove, succeeded } from "../oarlock/sdk.js";

const shared = (name) => JSON.parse(readFileSync(new URL(`../../${name}`, import.meta.url), "utf8"));
const { scenarios } = shared("kit-scenarios.json");
const manifest = shared("kit-scenarios.manifest.json");
const POD = { apiVersion: "v1", kind: "Pod", namespace: "default" };
const WIDGET = { apiVersion: "x.io/v1", kind: "Widget", name: "w" };

const deeds = {
  label: (target, labels) => label(target, labels),
  evict: (_, named) => evict({ ...POD, ...named }),
  delete: (_, named) => remove({ ...WIDGET, ...named }),
  patch: (_, fields) => patch({ ...WIDGET, namespace: "default" }, fields),
  create: (_, metadata) => create({ apiVersion: "x.io/v1", kind: "Widget", metadata }),
  drain: (_, name) => drain(name),
};

const strange = (scenario, seen) => action({
  operate: (visit) => {
    const target = visit.object;
    for (let call = 0; call < (scenario.calls ?? 0); call++) target.name;
    if (scenario.get) visit.get("x.io/v1", scenario.get, "w", { namespace: "default" });
    if (scenario.related) visit.related(scenario.related);
    if (scenario.field) seen.push(target.field(scenario.field));
    const items = (scenario.mutations ?? []).map((deed) => Object.entries(deed).map(([name, of]) => deeds[name](target, of)));
    const noted = scenario.event && event(...scenario.event);
    const stored = scenario.extra && extra(scenario.extra[0], scenario.extra[1].repeat(scenario.long ?? 1));
    return Array(scenario.times ?? 1).fill([items, noted, stored]);
  },
  progress: () => succeeded(),
});

for (const scenario of scenarios) {
  test(scenario.name, () => {
    const owner = scenario.owner && [{ apiVersion: "apps.kusionstack.io/v1alpha1", kind: "OperationJob", name: scenario.owner, uid: "u" }];
    const widget = object("x.io/v1", "Widget", "default", "w", owner && { metadata: { ownerReferences: owner } });
    const web = pod("web", { spec: { nodeName: "node-1" }, status: { conditions: [{ type: "Ready" }] } });
    const visit = Visit.to(web, { manifest, objects: [widget], parameters: scenario.parameters ?? {}, beforeLook: scenario.beforeLook ?? false });
    const seen = [];
    const call = () => visit.operate(strange(scenario, seen));
    if (!scenario.refused) {
      call();
      assert.deepEqual(seen, scenario.reads === undefined ? [] : [scenario.reads]);
      return;
    }
    const [reason, words] = scenario.refused;
    assert.throws(call, (error) => {
      assert.equal(error.reason, reason, error.message);
      assert.ok(error.message.includes(words), error.message);
      return true;
    });
  });
}
