"""A type checker finds a wrong keyword and a wrong type in every public call.

A program plants the mistakes. In the examples, each call on a sawlog object gets a keyword that does not exist, and an
`object()` as its first argument, each in a separate copy. A generated module calls every public method of the classes
that programs use: once correctly, which must pass, once with the keyword, and for each of its parameters with an
`object()` or a collection of those. If mypy accepts a mistake, an annotation is missing or too loose.
"""

from __future__ import annotations

import ast
import copy
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
import sawlog.aio.store
import sawlog.aio.topic
from sawlog import interop
from sawlog.interop.foreign import ExportOptions
from sawlog.interop.kafka_export import TOPIC_OPTIONS as KAFKA_OPTIONS
from sawlog.store.options import KafkaNames
from sawlog.store.settings import SETTINGS, TopicChanges, TopicSettings
from sawlog.typed.views import ConsumerOptions

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

#: Classes that programs use; generic ones with their type arguments.
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
    sawlog.aio.topic.AsyncLog: "sawlog.aio.topic.AsyncLog",
    sawlog.aio.store.AsyncConsumer: "sawlog.aio.store.AsyncConsumer",
}
#: Functions, and classes that are called to make something.
FUNCTIONS = {
    "sawlog.open": sawlog.open,
    "sawlog.open_async": sawlog.open_async,
    "sawlog.open_log_async": sawlog.open_log_async,
    "sawlog.redrive": sawlog.redrive,
    "sawlog.LogConfig": sawlog.LogConfig,
    "sawlog.MaintenanceConfig": sawlog.MaintenanceConfig,
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
#: The names of keywords that several calls have.
KEYWORDS: dict[str, type[Any]] = {
    each.__name__: each for each in (ConsumerOptions, ExportOptions, KafkaNames, TopicChanges, TopicSettings)
}
#: Collections of anything, on purpose: parameters of a query are whatever DuckDB takes.
OPEN = {(call, "parameters") for call in ("Store.sql", "Store.sql_reader", "AsyncStore.sql")}


def errors_of(*files: Path) -> dict[str, dict[tuple[int, int], list[str]]]:
    """Run mypy and return its errors by module, line and column."""
    options = ["--strict", "--no-error-summary", "--no-pretty", "--show-column-numbers"]
    command = [sys.executable, "-m", "mypy", *options, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said: dict[str, dict[tuple[int, int], list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in done.stdout.splitlines():
        if found := re.match(r"(.+?):(\d+):(\d+): (?:error|note): (.*)", line):
            said[Path(found[1]).stem][int(found[2]), int(found[3])].append(found[4])
    return said


def assert_all(differing: list[str]) -> None:
    assert not differing, "\n".join(differing)


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
        for keyword in keywords_of(each):
            yield call(True, keyword, [*passed(parameters, needed), f"{keyword}=object()"])
        for wrong in wrong_ones(what, each):
            if each.kind is each.VAR_POSITIONAL:
                yield call(True, f"*{each.name}={wrong}", [*passed(parameters, needed), wrong])
            elif each.kind is not each.VAR_KEYWORD:
                yield call(True, f"{each.name}={wrong}", passed(parameters, needed | {each.name: wrong}))


def keywords_of(parameter: inspect.Parameter) -> Iterable[str]:
    """Return the keywords that `**parameter` stands for."""
    named = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
    return () if named is None else KEYWORDS[named[1]].__annotations__


def wrong_ones(what: str, parameter: inspect.Parameter) -> Iterator[str]:
    """Yield values that the parameter should reject."""
    yield "object()"
    if re.search(r"Iterable|Sequence|[Ll]ist\[", str(parameter.annotation)) and (what, parameter.name) not in OPEN:
        yield "[object()]"
    if "Mapping[" in str(parameter.annotation):
        yield "{object(): 1}"


def passed(parameters: list[inspect.Parameter], given: dict[str, str]) -> list[str]:
    return [
        given[each.name] if each.kind is each.POSITIONAL_ONLY else f"{each.name}={given[each.name]}"
        for each in parameters
        if each.name in given
    ]


def is_awaited(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)


@pytest.mark.slow
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
    said = errors_of(tmp_path / "calls.py")["calls"]
    found = {line: text for (line, _), text in said.items()}
    differing = []
    for number, call in enumerate(calls, len(head) + 1):
        if (number in found) != call.wrong:
            differing.append(f"{call.what}: {found.get(number, 'nothing found')}")
    assert_all(differing)


def test_the_keywords_of_topics_are_their_settings() -> None:
    keywords = {each.keyword for each in SETTINGS.values()}
    assert set(TopicSettings.__annotations__) == set(TopicChanges.__annotations__) == keywords


def test_the_keywords_of_exports_are_the_options_of_the_formats() -> None:
    assert set(ExportOptions.__annotations__) == KAFKA_OPTIONS | {"head", "index_bits"}


# --- every call in the examples


@dataclass(frozen=True, slots=True)
class Plant:
    """A copy of an example with one mistake in it."""

    what: str
    text: str
    #: Text of the line that mypy must complain about.
    sign: str

    @property
    def line(self) -> int:
        return next(number for number, line in enumerate(self.text.splitlines(), 1) if self.sign in line)


WRONG_KEYWORD, WRONG_TYPE = "no_such_option=1", "object()"


def examples() -> dict[str, ast.Module]:
    """Return the examples that consist of one file, parsed and without comments: one line per statement."""
    paths = [path for path in sorted(EXAMPLES.glob("**/*.py")) if path.parent.name in ("examples", "first_week")]
    parsed = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    return {name: tree for name, tree in parsed.items() if name not in ("tour", "demo")}


def calls_in(tree: ast.AST) -> Iterator[ast.Call]:
    """All calls, each before those inside of it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node
        yield from calls_in(node)


class Revealing(ast.NodeTransformer):
    """Has the type checker say of which type the object is whose method is called. A module stays: it has no type."""

    def __init__(self, tree: ast.Module) -> None:
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        self._modules = {each.name for node in imports for each in node.names}
        self._tree = tree

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in self._modules:
            node.func.value = ast.Call(ast.Name("reveal_type"), [node.func.value], [])
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        return node  # a formatted string cannot be split over several lines

    @property
    def text(self) -> str:
        """The program, with each of the objects in a line of its own: of a line, mypy says the same only once."""
        return ast.unparse(self.visit(copy.deepcopy(self._tree))).replace("reveal_type(", "reveal_type(\n")


def types_of_receivers(trees: dict[str, ast.Module], folder: Path) -> dict[str, list[str]]:
    """For each call in each example the type of the object whose method it is; "" for functions."""
    revealing = {name: Revealing(tree).text for name, tree in trees.items()}
    said = errors_of(*written(folder, revealing))
    types: dict[str, list[str]] = {}
    for name, text in revealing.items():
        types[name] = []
        for call in calls_in(ast.parse(text)):
            if isinstance(call.func, ast.Name) and call.func.id == "reveal_type":
                continue
            revealed = call.func.value if isinstance(call.func, ast.Attribute) else None
            place = revealed.args[0] if isinstance(revealed, ast.Call) else None
            notes = [] if place is None else said[name][place.lineno, place.col_offset + 1]
            types[name].append(notes[0].removeprefix("Revealed type is ").strip('"') if notes else "")
    return types


def written(folder: Path, modules: dict[str, str]) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{name}.py" for name in modules]
    for path, text in zip(paths, modules.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def is_ours(call: ast.Call, receiver: str, names: set[str]) -> bool:
    """True for a call of a method of a sawlog object or class, or of a public function or class."""
    if isinstance(call.func, ast.Name):
        return call.func.id in names
    if not receiver:
        return ast.unparse(call.func).startswith("sawlog.")
    return receiver.startswith("sawlog.") or re.match(r"(def|Overload).* -> sawlog\.[\w.]+\)?$", receiver) is not None


def imported_from_us(tree: ast.Module) -> set[str]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {each.name for node in found if str(node.module).startswith("sawlog") for each in node.names}


def plants_in(name: str, tree: ast.Module, receivers: list[str]) -> Iterator[Plant]:
    names = imported_from_us(tree)
    for number, (call, receiver) in enumerate(zip(calls_in(tree), receivers, strict=True)):
        if not is_ours(call, receiver, names):
            continue
        what = f"{name}: {ast.unparse(call)}"
        planted, mine = copied(tree, number)
        mine.keywords.append(ast.keyword("no_such_option", ast.Constant(1)))
        yield Plant(what, ast.unparse(planted), WRONG_KEYWORD)
        if call.args or call.keywords:
            planted, mine = copied(tree, number)
            if mine.args:
                mine.args[0] = ast.parse(WRONG_TYPE, mode="eval").body
            else:
                mine.keywords[0].value = ast.parse(WRONG_TYPE, mode="eval").body
            yield Plant(what, ast.unparse(planted), WRONG_TYPE)


def copied(tree: ast.Module, number: int) -> tuple[ast.Module, ast.Call]:
    """A copy, and the call with this number in it."""
    made = copy.deepcopy(tree)
    return made, list(calls_in(made))[number]


@pytest.mark.slow
def test_mypy_finds_nothing_wrong_in_the_examples() -> None:
    said = errors_of(EXAMPLES)
    assert_all([f"{name}: {lines}" for name, lines in said.items()])


@pytest.mark.slow
def test_mypy_finds_a_wrong_keyword_and_a_wrong_type_in_every_call_of_the_examples(tmp_path: Path) -> None:
    trees = examples()
    assert all(WRONG_TYPE not in ast.unparse(tree) for tree in trees.values())
    receivers = types_of_receivers(trees, tmp_path / "revealing")
    plants = [plant for name, tree in trees.items() for plant in plants_in(name, tree, receivers[name])]
    assert {plant.what.partition(":")[0] for plant in plants} == set(trees)
    modules = {f"planted_{number}": plant.text for number, plant in enumerate(plants)}
    said = errors_of(*written(tmp_path / "plants", modules))
    missed = []
    for module, plant in zip(modules, plants, strict=True):
        lines = {line for line, _ in said[module]}
        if plant.line not in lines:
            missed.append(f"{plant.what}: {plant.sign} in line {plant.line} was not found, only {lines}")
    assert_all(missed)


# --- by hand: attributes, which are read instead of called


WRONG = """
import sawlog
from sawlog import Log, Record, Store

store = sawlog.open("data")
store.consumer("group", ["topic"], strat="earliest")
store.consumer("group", ["topic"], start=1.5)
store.consumer("group", ["topic"], auto_offset_reset="sometime")
topic = store.create_topic("orders", exist_ok="yes")
topic.append("text")
topic.append(b"value", keys=b"key")
topic.append_many([b"x"], expect_offset="3")
topic.writer().append(b"value", header=())
topic.writer().append("text")
for record in topic.scan():
    record.ofset
    record.value.upper()
    total: str = record.offset
Log.open("log").append(b"x", expected=3)
sawlog.open("data", lock_timeout="soon")
store.consumer("group", "topic").pause("orders", 1)


async def main() -> None:
    async with sawlog.open_async("data", lock_timout=1) as other:
        await (await other.topic("orders")).append("text")
        async for record in other.consumer("group", ["topic"], start=b"x"):
            record.partitions
"""


@pytest.mark.slow
def test_mypy_finds_wrong_attributes_and_wrong_uses_of_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    found = {line for line, _ in errors_of(tmp_path / "wrong.py")["wrong"]}
    for number, line in enumerate(WRONG.splitlines(), 1):
        is_wrong = bool(line.strip()) and not line.startswith(("import", "from", "store = ", "for ", "async def"))
        assert (number in found) == is_wrong, line
