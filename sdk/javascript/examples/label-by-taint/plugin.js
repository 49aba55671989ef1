// Labels pods by a taint of their node, so that a Service, a budget or a person can select the pods of tainted nodes.
import { action, failed, label, processing, succeeded, waitsFor } from "./oarlock/sdk.js";

const LABEL = "example.com/node-taint";

/** Returns the label that the pod should have: the value or the effect of the taint, or `null` without the taint. */
const wanted = ({ object, parameter, get }, node) => {
  const taints = get("v1", "Node", node)?.field("/spec/taints") ?? [];
  const found = taints.find(({ key }) => key === parameter("/taint"));
  return found ? found.value || found.effect : null;
};

const differs = (visit, node) => (visit.object.label(LABEL) ?? null) !== wanted(visit, node);

export default action({
  operate: (visit) => {
    const node = visit.object?.field("/spec/nodeName");
    // `keep`: the label is the purpose of the action, and stays when the target is released.
    return node && differs(visit, node) && label(visit.object, { [LABEL]: wanted(visit, node) }, { keep: true });
  },
  progress: (visit) => {
    if (!visit.object) return failed("PodNotFound", "The pod is gone; there is nothing to label.");
    const node = visit.object.field("/spec/nodeName");
    if (!node) return processing(waitsFor("Scheduling", "The pod has no node yet."));
    return differs(visit, node) ? processing() : succeeded();
  },
});
