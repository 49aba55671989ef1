from oarlock.kit import Visit, pod
from plugin import Plugin


def test_a_pod_is_marked_and_then_succeeds() -> None:
    first = Visit.to(pod("web-1"))
    mark = first.operate(Plugin())
    assert len(mark.mutations) == 1
    second = first.after(mark)
    assert second.operate(Plugin()).mutations == []
    assert second.progress(Plugin()).state == "succeeded"


def test_a_pod_that_is_gone_fails() -> None:
    assert Visit.to_gone("web-1").progress(Plugin()).state == "failed"
