"""Quarantines pods whose containers restarted too often, so that their Service no longer selects them and somebody can look at them."""

from oarlock import Action, Changes, KubeObject, Report, Visit, annotate, event, extra, failed, label, succeeded

LABEL = "example.com/quarantine"
REASON = "example.com/quarantine-reason"


def restarts(pod: KubeObject) -> int:
    """Returns the restarts of all containers of a pod."""
    return sum(status["restartCount"] for status in pod.field("/status/containerStatuses", []))


class Plugin(Action):
    def operate(self, visit: Visit) -> Changes:
        pod, most = visit.object, visit.parameter("/maxRestarts", 5)
        if pod is None or pod.label(LABEL) or restarts(pod) <= most:
            return None
        why = f"{restarts(pod)} restarts, more than {most}"
        # `keep`: the marks are the purpose of the action, and stay when the target is released.
        marks = [label(pod, {LABEL: "true"}, keep=True), annotate(pod, {REASON: why}, keep=True)]
        return [*marks, event("Quarantined", f"Pod {pod.name} has {why}."), extra("Restarts", restarts(pod))]

    def progress(self, visit: Visit) -> Report:
        if visit.object is None:
            return failed("PodNotFound", "The pod is gone; there is nothing to quarantine.")
        return succeeded()
