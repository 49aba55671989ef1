from typing import Any

import pytest

from oarlock.kit import CallFailed, Visit, pod
from plugin import LABEL, REASON, Plugin


def visit(*restarts: int, **parameters: Any) -> Visit:
    statuses = [{"name": str(at), "restartCount": count} for at, count in enumerate(restarts)]
    return Visit.to(pod("web-1", {"status": {"containerStatuses": statuses}}), parameters=parameters)


def test_a_pod_that_restarted_too_often_is_quarantined_once() -> None:
    first = visit(4, 3, maxRestarts=6)
    proposal = first.operate(Plugin())
    assert proposal.events[0].message == "Pod web-1 has 7 restarts, more than 6."
    second = first.after(proposal)
    assert second.object is not None
    assert second.object["metadata"]["labels"][LABEL] == "true"
    assert second.object["metadata"]["annotations"][REASON] == "7 restarts, more than 6"
    assert second.operate(Plugin()).mutations == []
    assert second.progress(Plugin()).state == "succeeded"


def test_a_pod_with_few_restarts_or_no_status_is_left_alone() -> None:
    assert visit(3, 2).operate(Plugin()).mutations == []
    assert Visit.to(pod("web-1")).operate(Plugin()).mutations == []
    assert visit(6).operate(Plugin()).mutations != []


def test_a_pod_that_is_gone_fails() -> None:
    assert Visit.to_gone("web-1").progress(Plugin()).reason == "PodNotFound"


def test_a_number_below_zero_is_refused() -> None:
    with pytest.raises(CallFailed, match="ParametersInvalid"):
        visit(1, maxRestarts=-1).operate(Plugin())
