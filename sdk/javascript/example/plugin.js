// Labels each target, and has succeeded once the label is there.
import { action, failed, label, processing, succeeded } from "./oarlock/sdk.js";

const LABEL = "example.com/quarantine";

export default action({
  // `keep`: the label is the purpose of the action, and stays when the target is released.
  operate: ({ object }) => object && !object.label(LABEL) && label(object, { [LABEL]: "true" }, { keep: true }),
  progress: ({ object }) => {
    if (!object) return failed("PodNotFound", "The pod is gone; there is nothing to quarantine.");
    return object.label(LABEL) ? succeeded() : processing();
  },
});
