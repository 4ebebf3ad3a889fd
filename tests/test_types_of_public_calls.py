"""A type checker finds a wrong keyword and a wrong type in every public call: what mypy says of calls with a mistake in them.

The mistakes are planted by a program. In the examples, each call on an object of ours gets a keyword that does not exist,
and an `object()` instead of its first argument, each in a copy of its own. And a generated module calls every public
method of the classes that programs use: once as it should be, which must pass, once with the keyword, and once for each
of its parameters with an `object()`. Where mypy says nothing, an annotation is missing or is too loose: `Any` is.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sawlog
import sawlog.aio.consumer
import sawlog.aio.log
import sawlog.aio.store
import sawlog.aio.topic
from sawlog import interop

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.slow

#: What programs use. Generic ones with what they are made of.
CLASSES: dict[type[Any], str] = {
    sawlog.Store: "sawlog.Store",
    sawlog.Topic: "sawlog.Topic",
    sawlog.Log: "sawlog.Log",
    sawlog.Consumer: "sawlog.Consumer",
    sawlog.Queue: "sawlog.Queue",
    sawlog.Groups: "sawlog.Groups",
    sawlog.Transaction: "sawlog.Transaction",
    sawlog.Writer: "sawlog.Writer",
    sawlog.TopicWriter: "sawlog.TopicWriter",
    sawlog.TypedTopic: "sawlog.TypedTopic[str, str, str]",
    sawlog.TypedLog: "sawlog.TypedLog[str, str, str]",
    sawlog.TypedConsumer: "sawlog.TypedConsumer[str, str, str]",
    sawlog.aio.store.AsyncStore: "sawlog.aio.store.AsyncStore",
    sawlog.aio.topic.AsyncTopic: "sawlog.aio.topic.AsyncTopic",
    sawlog.aio.log.AsyncLog: "sawlog.aio.log.AsyncLog",
    sawlog.aio.consumer.AsyncConsumer: "sawlog.aio.consumer.AsyncConsumer",
}
#: Functions, and classes that are called to make something.
FUNCTIONS = {
    "sawlog.open": sawlog.open,
    "sawlog.open_async": sawlog.open_async,
    "sawlog.open_log_async": sawlog.open_log_async,
    "sawlog.redrive": sawlog.redrive,
    "sawlog.LogConfig": sawlog.LogConfig,
    "sawlog.UpkeepConfig": sawlog.UpkeepConfig,
    "sawlog.Interval": sawlog.Interval,
    "sawlog.Producer": sawlog.Producer,
    "sawlog.JSON": sawlog.JSON,
    "sawlog.Nullable": sawlog.Nullable,
    "sawlog.Headers": sawlog.Headers,
    "sawlog.ArrowRows": sawlog.ArrowRows,
    "interop.import_log": interop.import_log,
    "interop.export_log": interop.export_log,
    "interop.export_topic": interop.export_topic,
    "interop.open": interop.open,
    "interop.detect": interop.detect,
}


def errors_of(*files: Path) -> dict[str, dict[int, list[str]]]:
    """What mypy says, by file and line."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in done.stdout.splitlines():
        if found := re.match(r"(.+?):(\d+): (?:error|note): (.*)", line):
            said[Path(found[1]).name][int(found[2])].append(found[3])
    return said


# --- every public method


@dataclass(frozen=True, slots=True)
class Call:
    """One line of the generated module, and whether mypy should complain about it."""

    what: str
    text: str
    wrong: bool


def public_calls() -> Iterator[Call]:
    for kind, name in CLASSES.items():
        for method in sorted(dir(kind)):
            found = inspect.getattr_static(kind, method)
            if method.startswith("_") or isinstance(found, property) or not callable(getattr(kind, method)):
                continue
            is_bound = isinstance(found, (classmethod, staticmethod))
            function = getattr(kind, method)
            yield from calls_of(f"{kind.__name__}.{method}", name, function, f"it.{method}", skip=0 if is_bound else 1)
    for name, function in FUNCTIONS.items():
        yield from calls_of(name, "object", function, name, skip=0)


def calls_of(what: str, kind: str, function: Any, called: str, *, skip: int) -> Iterator[Call]:
    """A call as it should be, and all the wrong ones."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    needed = {each.name: "ANY" for each in parameters if each.default is each.empty and each.kind < each.VAR_POSITIONAL}
    needed |= {each.name: "ANY" for each in parameters if each.default is each.empty and each.kind is each.KEYWORD_ONLY}

    def call(wrong: bool, told: str, arguments: Iterable[str]) -> Call:
        expression = f"{called}({', '.join(arguments)})"
        ending = f"-> object: return {expression}" if is_awaited(function) else f"-> None: {expression}"
        return Call(f"{what}: {told}", f"def _(it: {kind}) {ending}", wrong)

    yield call(False, "as it should be", passed(parameters, needed))
    yield call(True, "a wrong keyword", [*passed(parameters, needed), "no_such_option=1"])
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            yield call(True, f"*{each.name}", [*passed(parameters, needed), "object()"])
        elif each.kind is not each.VAR_KEYWORD:
            yield call(True, each.name, passed(parameters, needed | {each.name: "object()"}))


def passed(parameters: list[inspect.Parameter], given: dict[str, str]) -> list[str]:
    return [
        given[each.name] if each.kind is each.POSITIONAL_ONLY else f"{each.name}={given[each.name]}"
        for each in parameters
        if each.name in given
    ]


def is_awaited(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)


def test_mypy_finds_a_wrong_keyword_and_wrong_types_in_every_public_method(tmp_path: Path) -> None:
    calls = list(public_calls())
    head = [
        "import sawlog",
        "import sawlog.aio",
        "from sawlog import interop",
        "from typing import Any",
        "ANY: Any = None",
    ]
    (tmp_path / "calls.py").write_text("\n".join([*head, *(call.text for call in calls)]))
    said = errors_of(tmp_path / "calls.py")["calls.py"]
    differing = []
    for number, call in enumerate(calls, len(head) + 1):
        if bool(said.get(number)) != call.wrong:
            differing.append(f"{call.what}: {said[number] if not call.wrong else 'nothing found'}")
    assert not differing, "\n".join(differing)
