"""Write docs/cli.md: every command's own help, one after the other. `--check` only says whether it is up to date.

The reference is made from the commands, never written by hand, so it cannot promise what the program does not do.
tests/cli/test_reference.py fails when the two differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sawlog.cli.app import command

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 100

HEAD = """\
# The command line

<!-- Made by tools/make_cli_reference.py from the commands' own help. Do not edit: change the command, run it again. -->

Install it from a clone with `pip install '.[cli]'` and run `sawlog` or `python -m sawlog.cli`. After `make setup` it is
`.venv/bin/sawlog`. It needs no server: every command works on a data directory. Commands that only read take no lock
and can run while a writer is running. `sawlog cheat` prints a page of examples.

"""


def reference() -> str:
    """The whole page."""
    sections = list(_sections(command(), "sawlog", None))
    contents = "\n".join(f"- [`{path}`](#{path.replace(' ', '-')})" for path, _ in sections)
    body = "\n".join(f"## {path}\n\n```text\n{text}```\n" for path, text in sections)
    return f"{HEAD}{contents}\n\n{body}"


def _sections(found: Any, path: str, parent: Any) -> Iterator[tuple[str, str]]:
    """(command line, help) of a command and of all below it."""
    context = found.context_class(found, info_name=path.rpartition(" ")[2], parent=parent, max_content_width=WIDTH)
    context.terminal_width = WIDTH
    text = "\n".join(line.rstrip() for line in found.get_help(context).splitlines())
    yield path, f"{text}\n"
    if hasattr(found, "list_commands"):
        for name in found.list_commands(context):
            yield from _sections(found.get_command(context, name), f"{path} {name}", context)


def main() -> None:
    """Write the page, or look whether it is the one that would be written."""
    made = reference()
    if "--check" not in sys.argv[1:]:
        REFERENCE.write_text(made, encoding="utf-8")
        print(f"{REFERENCE.name}: {made.count('## ')} commands")
    elif not REFERENCE.exists() or REFERENCE.read_text(encoding="utf-8") != made:
        sys.exit("docs/cli.md is not what the commands say: run `python tools/make_cli_reference.py`")


if __name__ == "__main__":
    main()
