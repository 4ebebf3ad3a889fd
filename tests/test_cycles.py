"""No module imports, directly or through others, a module that imports it.

Imports inside functions count, although Python itself would let them pass. Imports for type checking alone do not, nor
the lazy imports that the layer contract allows by name: convenience methods of a topic or store that return a view.
grimp, which import-linter uses, reads the imports: it takes a tenth of the time of `ast`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grimp
import pytest

#: Importers and the modules that they may import lazily: the ignored imports of the first contract in pyproject.toml,
#: the consumers and queues that `Store.consumer` and `Store.queue` return, and the replica of a directory.
LAZY = (
    ("sawlog.store.base", ("sawlog.sql", "sawlog.typed", "sawlog.store.consumer", "sawlog.store.queues")),
    ("sawlog.store.directory.topic", ("sawlog.sql",)),
    ("sawlog.store.directory.replica", ("sawlog.store.objects",)),
)


def is_lazy(importer: str, imported: str) -> bool:
    return any(importer.startswith(above) and imported.startswith(views) for above, views in LAZY)


def graph(package: str) -> dict[str, set[str]]:
    """Return the modules of a package and the modules that each of them imports."""
    found = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    return {
        name: {each for each in found.find_modules_directly_imported_by(name) if not is_lazy(name, each)}
        for name in found.modules
    }


def cycle_in(edges: Mapping[str, set[str]]) -> list[str]:
    """A path from a module back to itself; empty if there is none."""
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

    return next((around for name in sorted(edges) if (around := walk(name, []))), [])


def test_no_module_imports_itself_through_others() -> None:
    edges = graph("sawlog")
    assert "sawlog.store.directory.topic" in edges
    assert not cycle_in(edges)


def test_a_cycle_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    package = tmp_path / "looped_package"
    package.mkdir()
    for name, source in {
        "__init__": "",
        "one": "from .two import thing\n",
        "two": "def thing():\n    from . import three\n",
        "three": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import two\n",
    }.items():
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert cycle_in(graph("looped_package")) == []
    (package / "three.py").write_text("def late():\n    from .one import thing\n")
    around = ["looped_package.one", "looped_package.two", "looped_package.three", "looped_package.one"]
    assert cycle_in(graph("looped_package")) == around
