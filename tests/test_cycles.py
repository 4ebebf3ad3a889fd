"""No module imports, by whatever way round, one that imports it: also not inside a function, where import-linter's
layers and Python itself would let it pass. Imports for type checking alone do not count."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src"


def module_name(path: Path) -> str:
    """What Python calls it."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "sawlog").rglob("*.py"))}


def imports_of(name: str, source: str, *, package: bool) -> Iterator[str]:
    """The modules that one imports, anywhere in it: `package.name`, whether that is a module or something in one."""

    def found(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom):
            home = name.split(".") if package else name.split(".")[:-1]
            above = home[: len(home) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            for each in node.names:
                yield f"{start}.{each.name}"
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):  # no expression imports anything
                yield from found(child)

    return found(ast.parse(source))


def graph() -> dict[str, set[str]]:
    """Who imports whom."""
    made: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        wanted = imports_of(name, path.read_text(), package=path.name == "__init__.py")
        ends = (each if each in MODULES else each.rpartition(".")[0] for each in wanted)
        made[name] = {each for each in ends if each in MODULES and each != name}
    return made


def cycle_in(edges: Mapping[str, set[str]]) -> list[str]:
    """Some way from a module back to it; empty if there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for each in sorted(edges[name]):
            if around := walk(each, [*way, name]):
                return around
        done.add(name)
        return []

    return next((around for name in edges if (around := walk(name, []))), [])


def test_no_module_imports_itself_by_a_detour() -> None:
    assert not cycle_in(graph())


def test_a_cycle_is_noticed() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    source = "def f():\n    from ..log import log\nif TYPE_CHECKING:\n    from . import gone\n"
    assert list(imports_of("sawlog.topics.topic", source, package=False)) == ["sawlog.log.log"]
