from typing import Any, Callable, Optional

import pytest

from oarlock import Action, Changes, Failure, Report, Visit, label, processing, succeeded
from oarlock import kit

MANIFEST = {
    "schema": 1, "name": "a", "version": "0.1.0", "action": "A", "target": ["Pod"],
    "writes": [{"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["a.b/c"], "reason": "r"}],
}  # fmt: skip


class Doing(Action):
    def __init__(self, deed: Callable[[Visit], Any]):
        self.deed = deed

    def operate(self, visit: Visit) -> Changes:
        changes: Changes = self.deed(visit)
        return changes

    def progress(self, visit: Visit) -> Report:
        return succeeded()


def visit(**facts: Any) -> kit.Visit:
    return kit.Visit.to(kit.pod("web"), manifest=MANIFEST, **facts)


def failure(deed: Callable[[Visit], Any]) -> kit.CallFailed:
    with pytest.raises(kit.CallFailed) as failed:
        visit().operate(Doing(deed))
    return failed.value


def raising(error: BaseException) -> Callable[[Visit], Any]:
    def deep(_: Visit) -> None:
        raise error

    return deep


def test_an_exception_becomes_a_failure_with_its_traceback() -> None:
    failed = failure(raising(RuntimeError("boom")))
    assert failed.reason == "PluginException"
    assert failed.message.startswith("RuntimeError: boom at deep (")
    assert "test_sdk.py:" in failed.message


def test_a_message_of_a_megabyte_and_a_deep_traceback_are_cut() -> None:
    def recurse(_: Optional[Visit]) -> None:
        recurse(_)

    assert len(failure(raising(ValueError("x" * (1 << 20)))).message) <= 1000
    assert len(failure(recurse).message) <= 1000


def test_an_exit_is_a_failure_and_a_late_import_says_what_to_do() -> None:
    assert "SystemExit" in failure(raising(SystemExit(1))).message
    assert "imported at the top of a file" in failure(raising(ModuleNotFoundError("No module named 'decimal'"))).message


def test_a_failure_of_the_plugin_keeps_its_reason_and_whether_the_host_repeats_the_call() -> None:
    failed = failure(raising(Failure("NotYet", "Wait.", retryable=True)))
    assert (failed.reason, failed.retryable) == ("NotYet", True)


def test_async_functions_and_generators_are_refused_when_the_module_is_loaded() -> None:
    async def coroutine(self: Any, visit: Visit) -> Any: ...

    def generator(self: Any, visit: Visit) -> Any:
        yield

    for deed in (coroutine, generator):
        with pytest.raises(TypeError, match="async or a generator"):
            type("Plugin", (Action,), {"operate": deed})


def test_a_generator_is_refused_when_it_is_returned() -> None:
    assert failure(lambda visit: (one for one in [])).reason == "PluginIsAsync"


def test_an_answer_that_is_no_change_is_named() -> None:
    assert "is no change" in failure(lambda visit: {"nonsense": 1}).message


def test_nothing_one_change_and_nested_lists_are_proposals() -> None:
    def count(deed: Callable[[Visit], Any]) -> int:
        return len(visit().operate(Doing(deed)).mutations)

    assert count(lambda visit: None) == count(lambda visit: False) == 0
    assert count(lambda visit: label(visit.object, {"a.b/c": "1"})) == 1
    assert count(lambda visit: [None, [label(visit.object, {"a.b/c": "1"})]]) == 1


class Marking(Action):
    def operate(self, visit: Visit) -> Changes:
        return visit.object and label(visit.object, {"a.b/c": "1"})

    def progress(self, visit: Visit) -> Report:
        return processing()

    def release(self, visit: Visit) -> Changes:
        return visit.object and label(visit.object, {"a.b/c": None})


def test_a_mark_is_a_hold_and_its_removal_takes_it_off_but_a_mark_of_another_stays() -> None:
    marked = visit().after(visit().operate(Marking()))
    assert marked.object and marked.object["metadata"]["labels"]["a.b/c"] == "1"
    assert "label:a.b/c" in marked.object["metadata"]["annotations"]["hold.oarlock.dev/uid-of-job"]
    clean = marked.after(marked.release(Marking()))
    assert clean.object and "a.b/c" not in clean.object["metadata"]["labels"]
    foreign = kit.Visit.to(kit.pod("web", {"metadata": {"labels": {"a.b/c": "theirs"}}}), manifest=MANIFEST)
    kept = foreign.after(foreign.release(Marking()))
    assert kept.object and kept.object["metadata"]["labels"]["a.b/c"] == "theirs"
