"""`make docs`: every document and every public name is in the site, which works from a disk without a network."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import subprocess
import sys
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

import sawlog
import sawlog.testing

from .looping import for_each

ROOT = Path(__file__).resolve().parent.parent
#: Tags by which a page loads something. A link that a reader may click is none of them.
_LOADED = re.compile(r"<(?:script|link|img|iframe|source|video|audio)\b[^>]*?\b(?:src|href|srcset)=\"([^\"]*)\"")
_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?([^\"')]+)")


@for_each("name", sorted(set(sawlog.__all__) - {"__version__", "errors"}))
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    found = getattr(sawlog, name)
    text = vars(found).get("__doc__") if isinstance(found, type) else inspect.getdoc(found)
    assert text
    assert not text.startswith(f"{name}("), "made by dataclass, not written"


DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@for_each("document", DOCUMENTS)
def test_every_document_has_one_title_and_skips_no_level_of_headings(document: Path) -> None:
    """`make docs` refuses other documents, but it is not part of the quick tests."""
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    levels = [len(marks) for marks in re.findall(r"^(#{1,6}) ", text, re.MULTILINE)]
    assert levels[:1] == [1]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels


def test_every_name_of_the_reference_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that has moved would otherwise be noticed by `make docs` only."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    reference = importlib.import_module("reference")
    for page in reference.pages():
        for part in page.parts:
            module = importlib.import_module(part.module)
            assert [name for name in part.names if not hasattr(module, name)] == [], part.module


def test_every_page_is_in_exactly_one_part_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` also refuses a page that is in none."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    mirror = importlib.import_module("mirror")
    placed = [*mirror.HOW_TO, *mirror.REFERENCE, *mirror.EXPLANATION, *mirror.PROJECT]
    pages = {
        str(path.relative_to(ROOT))
        for path in [p for folder in ("docs", "docs/how-to", "docs/internals") for p in (ROOT / folder).glob("*.md")]
    }
    assert sorted(page for page in placed if page.startswith("docs/")) == sorted(pages)
    assert all((ROOT / page).exists() for _, page, _ in mirror.CARDS)


def test_no_two_pages_have_the_same_title() -> None:
    titles = [document.read_text(encoding="utf-8").split("\n", 1)[0] for document in DOCUMENTS]
    assert len(titles) == len(set(titles)), sorted(titles)


def build(checkout: Path, target: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("sphinx", reason="`make docs` installs it")
    command = [sys.executable, checkout / "docs" / "site" / "make_site.py", target]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
def test_the_site_has_every_document_and_name_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = build(ROOT, site)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")}
    documents = {
        str(path.relative_to(ROOT).with_suffix("")) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    }
    assert documents <= pages
    assert {"api/store", "api/log", "api/errors", "api/testing", "api/spark", "api/pipelines", "search"} <= pages

    names = documented(site)
    assert {f"sawlog.{name}" for name in sawlog.__all__ if name != "errors"} <= names
    assert {"sawlog.errors.SawlogError", "sawlog.errors.OffsetOutOfRange"} <= names
    assert {f"sawlog.testing.{name}" for name in sawlog.testing.__all__} <= names
    fields = "offset", "timestamp", "timestamp_type", "key", "value", "headers", "topic", "partition"
    assert {f"sawlog.Record.{field}" for field in fields} <= names
    assert {"sawlog.Log.append_many", "sawlog.aio.store.AsyncStore.create_topic", "sawlog.spark.session"} <= names
    assert {"sawlog.LogConfig.segment_bytes", "sawlog.pipelines.ingest.IngestParams.topic"} <= names

    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")  # a script: a browser loads no JSON for a page of a disk
    assert "append_many" in index
    assert loaded_from_elsewhere(site) == []


def documented(site: Path) -> set[str]:
    """The names in Sphinx's inventory: four lines of text, then lines that are compressed."""
    compressed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(compressed).decode().splitlines()}


def loaded_from_elsewhere(site: Path) -> list[str]:
    found = []
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        pattern = _LOADED if path.suffix == ".html" else _STYLE
        goals = pattern.findall(path.read_text(encoding="utf-8"))
        found += [f"{path.name}: {goal}" for goal in goals if re.match(r"\w+://|//", goal)]
    return found


@pytest.mark.slow
def test_a_broken_link_in_a_new_page_of_the_guide_fails_the_build_and_is_named(tmp_path: Path) -> None:
    checkout, site = tmp_path / "checkout", tmp_path / "site"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.so"))
    page = checkout / "docs" / "guide" / "planted.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("# Planted\n\n[a page](nowhere.md) and [a heading](../async.md#no-such-heading)\n")
    done = build(checkout, site)
    assert done.returncode != 0
    assert not site.exists()
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(warnings) == 2
    assert all("docs/guide/planted.md:3" in line for line in warnings)
