"""Labels each target, and has succeeded once the label is there."""

from oarlock import Action, Changes, Report, Visit, failed, label, processing, succeeded

LABEL = "example.com/quarantine"


class Plugin(Action):
    def operate(self, visit: Visit) -> Changes:
        pod = visit.object
        # `keep`: the label is the purpose of the action, and stays when the target is released.
        return pod and not pod.label(LABEL) and label(pod, {LABEL: "true"}, keep=True)

    def progress(self, visit: Visit) -> Report:
        if visit.object is None:
            return failed("PodNotFound", "The pod is gone; there is nothing to quarantine.")
        return succeeded() if visit.object.label(LABEL) else processing()
