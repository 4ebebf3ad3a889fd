"""Every size of the engine is one that the crash workloads vary, or one that they need not, and why is said."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import sawlog
from sawlog import Log, LogConfig

from ..looping import for_each
from .thresholds import _PLACES, NOT_VARIED, TABLE, chosen, get, small

#: The tests of this module share the parsed source: one worker parses it.
pytestmark = pytest.mark.group("thresholds")

SOURCE = Path(sawlog.__file__).parent
#: Packages that make a log and a store, and that stage for Spark.
FOLDERS = ("batch", "storage", "log", "store", "spark")
#: The workloads write directories.
LEFT_OUT = ("batch.kernel.", "store.objects.", "store.replica.")
#: Names of sizes; and numbers written as a power of two above a thousand.
_NAME = re.compile(r"BYTES|MOST|MAX_|LEAST|SMALL|ROWS|_STEP$|SPAN|CHUNK|SHIFT|_BATCHES$|_SEGMENTS$|REMEMBERED|LONGEST")
#: Sizes without a name, in functions: where, and why no workload changes them.
UNNAMED = {
    "batch.arrow:to_arrow": "what a caller may decode at once, unless he says otherwise",
    "batch.build:__init__": "the room of a new buffer, which grows",
    "batch.build:_fresh": "the room of a new buffer, which grows",
    "batch.read:decode": "what a caller may decode at once, unless he says otherwise",
    "log.log:fetch": "a reader chooses it; nothing is written",
    "store.base.partition:fetch": "a reader chooses it; nothing is written",
    "store.base.partition:_peek": "a reader chooses it; nothing is written",
    "storage.system:most_descriptors": "no limit at all; fewer are tried in tests/log/read/test_descriptors.py",
    "spark.options:write_options": "an option, smaller in stores.spark_write than what is written",
}


@cache
def _modules() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(_parsed())


@cache
def _nodes() -> tuple[tuple[str, list[ast.AST]], ...]:
    """All nodes of every module. Walking a tree takes longer than parsing it."""
    return tuple((module, list(ast.walk(tree))) for module, tree in _modules())


def _parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted([SOURCE / "config.py", *(each for name in FOLDERS for each in (SOURCE / name).rglob("*.py"))]):
        name = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        if not name.startswith(LEFT_OUT):  # the kernel is compiled: its names are not looked up when it runs
            yield name, ast.parse(path.read_text())


def _is_large_shift(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        left, right = node.left, node.right
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            return isinstance(left.value, int) and isinstance(right.value, int) and left.value << right.value > 1000
    return False


def _is_number(value: ast.expr) -> bool:
    """Made of whole numbers and names alone."""
    allowed = (ast.BinOp, ast.Constant, ast.Name, ast.operator, ast.Load, ast.Tuple, ast.UnaryOp, ast.unaryop)
    numbers = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
    return (
        all(isinstance(node, allowed) for node in ast.walk(value))
        and bool(numbers)
        and all(type(number) is int for number in numbers)
    )


def _sizes() -> Iterator[str]:
    """All that look like one, as `module:NAME`."""
    for module, tree in _modules():
        for node in tree.body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            value = getattr(node, "value", None)
            if not targets or value is None or not _is_number(value):
                continue
            names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            shifted = any(_is_large_shift(each) for each in ast.walk(value))
            yield from (f"sawlog.{module}:{name}" for name in names if shifted or _NAME.search(name))


@pytest.mark.costly  # parses the source
def test_every_size_of_the_engine_is_varied_or_it_is_said_why_not() -> None:
    known = {*NOT_VARIED, *(place for each in TABLE for place in each.places)}
    assert sorted(set(_sizes()) - known) == [], "put these into tests/faults/thresholds.py"


def test_sizes_that_are_listed_are_there() -> None:
    for each in TABLE:
        assert len({get(place) for place in each.places}) == 1, f"{each.places} are not one size"
        assert get(each.name) not in each.choices
    found = {place for module, nodes in _nodes() for place in _defined(module, nodes)}
    assert sorted(name for name in NOT_VARIED if name not in found and "kernel" not in name) == []
    assert not {*NOT_VARIED} & {*_PLACES}


def _defined(module: str, nodes: list[ast.AST]) -> set[str]:
    assigned = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return {f"sawlog.{module}:{node.id}" for node in assigned}


def test_sizes_without_a_name_are_known() -> None:
    found = set()
    for module, nodes in _nodes():
        if not any(_is_large_shift(node) for node in nodes):
            continue
        for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
            if any(_is_large_shift(node) for node in ast.walk(function)):
                found.add(f"{module}:{function.name}")
    assert sorted(found - {*UNNAMED}) == [], "give it a name, or a reason"


def test_modules_that_import_a_size_by_name_are_in_the_table() -> None:
    """`from .writer import BATCH_BYTES` is another name for the old value."""
    homes = {place.partition(":")[2] for each in TABLE for place in each.places if "(" not in place}
    places = {place for each in TABLE for place in each.places}
    for module, nodes in _nodes():
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                for name in (alias.name for alias in node.names if alias.name in homes):
                    assert f"sawlog.{module}:{name}" in places, f"{module} imports {name}, and is not in the table"


@for_each("seed", range(20))
def test_a_seed_chooses_the_same_every_time_and_all_is_put_back(seed: int) -> None:
    before = {place: get(place) for each in TABLE for place in each.places}
    sizes = chosen(seed)
    assert sizes == chosen(seed)
    with small(sizes), small(sizes):  # in a recovery that is part of the work
        for name, value in sizes.items():
            assert {get(place) for place in _PLACES[name]} == {value}
    assert {place: get(place) for place in before} == before


def test_a_default_that_is_changed_counts() -> None:
    with small({"sawlog.log.writer:BATCH_BYTES": 100}), Log.in_memory(LogConfig()) as log:
        with log.writer() as writer:
            for _ in range(10):
                writer.append(b"x" * 40)
        assert sum(len(chunk.rows) for chunk in log._segment_set.active.chunks(0, 10)) > 3, "batches"
