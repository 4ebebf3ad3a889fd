"""Starting a command or importing the library loads no module before it is needed, and every public name is still there
for programs and type checkers."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from tests.broker.serving import Serving

import sawlog

PACKAGE = Path(sawlog.__file__)
#: Nothing that only runs a log or a broker needs one of these.
HEAVY = {
    "pyarrow",
    "duckdb",
    "pandas",
    "polars",
    "pyspark",
    "msgspec",
    "confluent_kafka",
    "boto3",
    "obstore",
    "rich.console",
}
#: Prints the modules when the process ends, however it ends.
AT_EXIT = "import atexit, sys; atexit.register(lambda: print('MODULES', *sorted(sys.modules), file=sys.stderr))\n"


def imported(code: str, *arguments: str) -> set[str]:
    """The modules of a Python process that has run this."""
    command = [sys.executable, "-c", AT_EXIT + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    last = next(line for line in done.stderr.splitlines() if line.startswith("MODULES"))
    return set(last.split()[1:])


def of(packages: set[str], modules: set[str]) -> set[str]:
    """Filter the modules that belong to one of the packages."""
    return {each for each in modules if any(each == name or each.startswith(f"{name}.") for name in packages)}


def command(*arguments: str) -> set[str]:
    """Return the modules that a `sawlog` command imports."""
    return imported("from sawlog.cli import main; main()", *arguments)


compiled = pytest.mark.skipif(not sawlog.kernel_info().compiled, reason="the warning about the kernel imports it")


@compiled
def test_import_of_the_package_imports_errors_alone() -> None:
    modules = imported("import sawlog")
    assert {each for each in modules if each.startswith("sawlog")} == {"sawlog", "sawlog.errors", "sawlog.batch"}
    assert not of(HEAVY | {"numpy", "asyncio", "typer", "dataclasses"}, modules)


@compiled
def test_help_and_version_import_no_command() -> None:
    assert not of(HEAVY | {"numpy", "asyncio", "sawlog.store", "sawlog.log", "sawlog.cli.read"}, command("--help"))
    assert not of(HEAVY | {"asyncio", "sawlog.store", "sawlog.log", "sawlog.cli.read"}, command("--version"))


def test_a_command_imports_neither_other_commands_nor_the_broker(tmp_path: Path) -> None:
    store = str(tmp_path / "data")
    with sawlog.open(store) as made:
        made.create_topic("orders")
    others = {f"sawlog.cli.{name}" for name in ("serve", "sql", "pipeline", "objects", "doctor", "produce")}
    rooms = {
        f"sawlog.{name}" for name in ("broker", "pipelines", "spark", "sql", "store.objects", "store.replica", "tables")
    }
    assert not of(HEAVY | others | rooms | {"asyncio"}, command("read", "orders", "-d", store))
    assert not of(HEAVY | others | rooms | {"asyncio"}, command("topic", "list", "-d", store))


def test_a_broker_imports_what_it_serves_and_no_more(tmp_path: Path) -> None:
    """`Serving` runs `python -m MODULE serve ...` and ends it with SIGTERM."""
    (tmp_path / "looked_at.py").write_text(
        f"import atexit, sys\nfrom pathlib import Path\nfrom sawlog.cli import main\n"
        f"atexit.register(lambda: Path({str(tmp_path / 'modules')!r}).write_text(' '.join(sys.modules)))\nmain()\n"
    )
    with Serving(tmp_path / "data", module=("looked_at",), variables={"PYTHONPATH": _path(tmp_path)}) as broker:
        assert broker.stop() == 0
    modules = set((tmp_path / "modules").read_text().split())
    assert "sawlog.broker.handlers.fetch" in modules
    rooms = {
        "aio",
        "interop",
        "pipelines",
        "store.objects",
        "store.replica",
        "schemas",
        "spark",
        "sql",
        "tables",
        "testing",
        "typed",
    }
    unneeded = {f"sawlog.{name}" for name in rooms} | {
        "sawlog.broker.remote",
        "kafka",
        "sawlog.store.queues",
        "tomllib",
    }
    assert not of(HEAVY | unneeded, modules)


def _path(first: Path) -> str:
    return ":".join(map(str, (first, PACKAGE.parents[1], Path(__file__).parents[1])))


# --- and nobody notices


def test_what_type_checkers_are_told_is_what_programs_get() -> None:
    """The imports for type checkers and the names that are imported when asked for are the same."""
    (block,) = (
        node
        for node in ast.parse(PACKAGE.read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "_typing.TYPE_CHECKING"
    )
    told = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            told |= {each.asname or each.name: f"sawlog.{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Assign):
            told[ast.unparse(node.targets[0])] = f"sawlog.{ast.unparse(node.value)}"
    eager = {"__version__", "errors"}
    assert set(told) | eager == set(sawlog.__all__)
    for name, home in told.items():
        module, _, attribute = home.rpartition(".")
        assert getattr(sawlog, name) is getattr(sys.modules[module], attribute), name


def test_every_public_name_is_listed_and_found_by_a_star() -> None:
    assert set(sawlog.__all__) <= set(dir(sawlog))
    found: dict[str, object] = {}
    exec("from sawlog import *", found)
    assert set(sawlog.__all__) <= set(found)


# Eight forks, each of which imports a part of the library.
@pytest.mark.costly
def test_rooms_are_reached_without_an_import_of_their_own() -> None:
    """Each in a fork of its own, where the others were not reached before."""
    program = """
import asyncio, inspect, os, sys
import numpy, sawlog
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        assert inspect.ismodule(getattr(sawlog, name)), name
        assert f"sawlog.{name}" in sys.modules, name
        sys.exit()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, name
"""
    rooms = ["aio", "batch", "config", "errors", "log", "storage", "store", "typed"]
    subprocess.run([sys.executable, "-c", program, *rooms], check=True, timeout=240)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Lgo'"):
        sawlog.Lgo  # noqa: B018
    assert not inspect.ismodule(sawlog.open)


# Each seed imports the whole library again.
@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_threads_may_ask_for_names_at_the_same_time(seeds: int) -> None:
    """A module and its package, begun from different ends by two threads, would wait for each other. Each order of
    names is tried in a fork, which has imported nothing of them yet."""
    program = """
import os, random, sys, threading, sawlog
for seed in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, seed
else:
    sys.exit()
names, together, failed = [*sawlog.__all__], threading.Barrier(8), []
random.Random(seed).shuffle(names)
def ask(mine):
    together.wait()
    for name in mine:
        try:
            getattr(sawlog, name)
        except BaseException as error:
            failed.append(repr(error))
threads = [threading.Thread(target=ask, args=(names[n::8],)) for n in range(8)]
for each in threads: each.start()
for each in threads: each.join(60)
assert not failed, failed
assert not any(each.is_alive() for each in threads)
"""
    subprocess.run([sys.executable, "-c", program, str(seeds)], check=True, timeout=240)
