"""Write constraints.txt: the versions of all packages installed in this environment except sawlog."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

HEAD = """\
# The versions that the tests were last run with. `make` installs these, so that a release of a linter or a library
# changes nothing until somebody runs `make upgrade`. Users of sawlog are not bound by them: see docs/dependencies.md.
"""
ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = {"sawlog", "pip"}


def main() -> None:
    versions = {_name(found): found.version for found in metadata.distributions()}
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items()) if name not in LEFT_OUT]
    (ROOT / "constraints.txt").write_text(HEAD + "".join(lines))


def _name(found: metadata.Distribution) -> str:
    return re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()


if __name__ == "__main__":
    main()
