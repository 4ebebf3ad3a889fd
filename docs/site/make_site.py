"""Build the site: `python docs/site/make_site.py [TARGET]`, or `make docs`. The target is build/site if not given.

The documents (mirror.py) and the API reference (reference.py) are laid out in a directory of their own, and Sphinx
makes pages of them. A warning is an error: a broken link, a page that the navigation misses, a docstring that is not
Markdown.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import mirror
import reference
from sphinx.cmd.build import build_main

HERE = Path(__file__).resolve().parent
TARGET = mirror.ROOT / "build" / "site"


def write_reference(folder: Path) -> None:
    """The pages of the API reference."""
    folder.mkdir()
    pages = reference.pages()
    for page in pages:
        (folder / f"{page.path}.md").write_text(reference.markdown(page), encoding="utf-8")
    (folder / "index.md").write_text(reference.index(pages), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Build into a new directory, which takes the place of the old one only if all went well."""
    target = Path(arguments[0]).resolve() if arguments else TARGET
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="site-") as place:
        source, made = Path(place, "source"), Path(place, "site")
        mirror.lay_out(source)
        write_reference(source / "api")
        options = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", str(HERE)]
        failed = int(build_main([*options, "--doctree-dir", str(Path(place, "doctrees")), str(source), str(made)]))
        if failed:
            print("the site was not built: see the warnings above; paths are those of the checkout", file=sys.stderr)
            return failed
        shutil.rmtree(made / "_sources", ignore_errors=True)  # empty
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    print(f"{_shown(target)}: {len(list(target.rglob('*.html')))} pages; open it in a browser, it needs no server")
    return 0


def _shown(target: Path) -> str:
    page = target / "index.html"
    return str(page.relative_to(Path.cwd())) if page.is_relative_to(Path.cwd()) else str(page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
