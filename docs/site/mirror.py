"""The documents of the checkout, laid out for Sphinx as they are in the checkout, and the navigation over them.

The same folders, so that links between documents hold. A link to a folder leads to the folder's page; a file that is
not a document (source, licence) comes along and can be downloaded.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = "docs/guide"
DECISIONS = "docs/adr"
#: The parts of the site, after the tutorials, each with its pages in order. Every page of docs/ is in one of them.
HOW_TO = (
    "docs/installation.md",
    "docs/how-to/see-it-work.md",
    "docs/how-to/background-jobs.md",
    "docs/how-to/event-sourcing.md",
    "docs/how-to/outbox.md",
    "docs/how-to/stream-to-a-browser.md",
    "docs/how-to/kafka-clients-to-spark.md",
    "docs/testing-kafka-programs.md",
    "docs/how-to/tune.md",
    "docs/how-to/backup-and-restore.md",
    "docs/how-to/run-as-a-service.md",
    "docs/streaming-job.md",
    "docs/tables-spark.md",
    "docs/replicas.md",
    "docs/interop.md",
    "docs/security.md",
    "docs/acls.md",
    "docs/brokers-over-a-bucket.md",
)
REFERENCE = (
    "docs/features.md",
    "docs/cli.md",
    "api/index.md",
    "docs/queues.md",
    "docs/tables.md",
    "docs/typed.md",
    "docs/async.md",
    "docs/spark.md",
    "docs/broker.md",
    "docs/broker-limits.md",
    "docs/compatibility.md",
    "docs/object-storage.md",
    "docs/dependencies.md",
    "docs/glossary.md",
)
EXPLANATION = (
    "docs/how-a-segmented-log-works.md",
    "docs/choosing.md",
    "docs/acknowledgements.md",
    "docs/guarantees.md",
    "docs/visibility.md",
    "docs/several-processes.md",
    "docs/exactly-once.md",
    "docs/faq.md",
    "ARCHITECTURE.md",
    "docs/internals/testing.md",
    "benchmarks/README.md",
)
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
#: What each part is for. Its page lists all pages of the part.
PARTS = {
    "Tutorials": "Learn by doing: short pages with programs to run, one after the other.",
    "How-to guides": "Get one thing done: install, run jobs, publish, test, back up, tune.",
    "Reference": "Look it up: commands, classes, options, formats and limits.",
    "Explanation": "Understand: how a log works, what is guaranteed, and what was measured.",
}
#: The cards of the front page: a task, the page for it, and what the reader gets there.
CARDS = (
    ("Write and read records", "docs/guide/first-log.md", "Offsets, reading, waiting: ten minutes with one log."),
    ("Share work between consumers", "docs/guide/topics-and-groups.md", "Topics, keys, partitions and groups."),
    (
        "Run background jobs",
        "docs/how-to/background-jobs.md",
        "Queues: acknowledgements, retries, dead letters.",
    ),
    ("Stream with Spark", "docs/guide/spark.md", "Read and write topics exactly once, in batch and streaming."),
    ("Query with SQL", "docs/tables.md", "SQL, Arrow, Polars and pandas over topics."),
    ("Connect Kafka clients", "docs/broker.md", "`sawlog serve`, for clients in any language."),
    ("Test a Kafka program", "docs/testing-kafka-programs.md", "A broker inside pytest, without containers or Java."),
    (
        "Keep the log in a bucket",
        "docs/object-storage.md",
        "S3, Google Cloud Storage, Azure: many machines, no server.",
    ),
    ("Choose how safe and how fast", "docs/guide/durability.md", "What an acknowledgement costs, and what survives."),
    ("Move from Kafka", "docs/guide/moving-from-kafka.md", "What stays the same, what is different."),
    (
        "Understand how it works",
        "docs/how-a-segmented-log-works.md",
        "From the idea of a log to the code, step by step.",
    ),
    ("Decide whether it fits", "docs/choosing.md", "sawlog next to Kafka, Redis, NATS, SQLite and RocksDB."),
)
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#:\s]+)(?P<anchor>#[^)]*)?(?=\))")


def documents() -> list[Path]:
    """Every document, relative to the checkout."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("examples/*.md")]
    return sorted(path.relative_to(ROOT) for path in found)


def lay_out(target: Path) -> None:
    """Write all documents, and the pages of folders, into `target`."""
    for document in documents():
        text = (ROOT / document).read_text(encoding="utf-8")
        _write(target / document, _LINK.sub(partial(_resolved, document, target), text))
    _write(target / DECISIONS / "index.md", _decisions())
    _write(target / "index.md", _front())
    for part, pages in _parts().items():
        if part in PARTS:
            _write(target / _part_file(part), _part(part, pages))


def _resolved(document: Path, target: Path, link: re.Match[str]) -> str:
    """Return the link as the site needs it. A target that is not a document is copied to the site."""
    goal = (ROOT / document.parent / link["path"]).resolve()
    if not goal.is_relative_to(ROOT) or not goal.exists():
        return link[0]  # Sphinx reports it
    inside = goal.relative_to(ROOT)
    if goal.is_dir():
        page = _page_of_folder(inside)
        if not (ROOT / inside / page).exists() and inside != Path(DECISIONS):
            _write(target / inside / page, _listing(inside))
        return f"{link['path'].rstrip('/')}/{page}"
    if goal.suffix != ".md":
        (target / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(goal, target / inside)
    return link[0]


def _page_of_folder(folder: Path) -> str:
    return "README.md" if (ROOT / folder / "README.md").exists() else "index.md"


def _listing(folder: Path) -> str:
    """A folder without a page of its own: its files, as they are."""
    lines = ["---", "orphan: true", "---", "", f"# {folder}", ""]
    for path in sorted(path for path in (ROOT / folder).iterdir() if path.is_file()):
        language = {".py": "python", ".service": "ini"}.get(path.suffix, "text")
        lines += [f"## {path.name}", "", f"```{language}", path.read_text(encoding="utf-8").rstrip(), "```", ""]
    return "\n".join(lines)


# --- navigation ------------------------------------------------------------------------------------------------------


def _front() -> str:
    """The first page: the README's first paragraphs and picture, cards by task, and the four parts."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    title, *paragraphs = readme.split("\n\n")
    lines = [title, "", "\n\n".join(paragraphs[:3]), "", *_cards(CARDS)]
    lines += ["## All pages", "", *_cards((part, _part_file(part), about) for part, about in PARTS.items())]
    for part, pages in _parts().items():
        lines += _tree(part, pages)
    return "\n".join(lines)


def _parts() -> dict[str, list[str]]:
    """Return the pages of each part of the navigation, in order."""
    return {
        "Tutorials": ["Overview <README>", *_guide(), "examples/README.md"],
        "How-to guides": [*HOW_TO],
        "Reference": [*REFERENCE],
        "Explanation": [*EXPLANATION],
        "Design decisions": [f"{DECISIONS}/index.md"],
        "Project": [*PROJECT],
    }


def _part_file(part: str) -> str:
    return f"parts/{part.lower().replace(' ', '-')}.md"


def _part(part: str, pages: Iterable[str]) -> str:
    """The page of a part: its pages by title. The navigation on the left, which lists them too, is hidden on a
    phone."""
    lines = ["---", "orphan: true", "---", "", f"# {part}", "", PARTS[part], ""]
    lines += [f"- [](/{page})" for page in pages if not page.endswith(">")]
    return "\n".join([*lines, ""])


def _cards(cards: Iterable[tuple[str, str, str]]) -> list[str]:
    lines = ["::::{container} cards"]
    for name, page, about in cards:
        lines += [":::{container} card", f"**[{name}]({page})**", "", about, ":::"]
    return [*lines, "::::", ""]


def _tree(caption: str, pages: Iterable[str]) -> list[str]:
    entries = [page.removesuffix(".md") for page in pages]
    return ["```{toctree}", f":caption: {caption}", ":maxdepth: 1", ":hidden:", "", *entries, "```", ""]


def _guide() -> Iterator[str]:
    """Yield the guide's pages: its README, the pages it links to in that order, then the rest by name."""
    folder = ROOT / GUIDE
    pages = {path.name for path in folder.glob("*.md")}
    linked: list[str] = []
    if "README.md" in pages:
        linked = [link["path"] for link in _LINK.finditer((folder / "README.md").read_text(encoding="utf-8"))]
    for name in dict.fromkeys(["README.md", *linked, *sorted(pages)]):
        if name in pages:
            yield f"{GUIDE}/{name}"


def _decisions() -> str:
    pages = sorted(path.stem for path in (ROOT / DECISIONS).glob("*.md"))
    about = "Each page: context, decision, consequences, how we would know we were wrong."
    return "\n".join(["# Design decisions", "", about, "", "```{toctree}", ":maxdepth: 1", "", *pages, "```", ""])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
