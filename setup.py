"""Build the kernel with Cython if a C compiler is available; install the interpreted kernel otherwise.

`SAWLOG_PURE=1` skips the compiler; the wheel is then `py3-none-any`. Both variants run the same source, and
`sawlog.kernel_info()` reports which one is loaded. The last line of a build reports it too, but pip shows that only
with -v; `python -m sawlog` prints it afterwards.

`SAWLOG_REPOSITORY` is the address of the public repository, which the release workflow knows: the links of README.md
lead there from the package index, where relative links lead nowhere. Without it they become plain text.

Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036 - older versions of pip check `requires-python` after the dependencies
    sys.exit(f"sawlog needs Python 3.11 or newer, and {sys.executable} is Python {sys.version.split()[0]}.")

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNEL_MODULE = "sawlog.batch.kernel"
KERNEL_FOLDER = "src/sawlog/batch/kernel"
KERNEL_SOURCE = f"{KERNEL_FOLDER}/__init__.pyx"  # includes all units

PACKAGE = Path("src/sawlog/__init__.py").read_text(encoding="utf-8")
VERSION = PACKAGE.partition('\n__version__ = "')[2].partition('"')[0]
REPOSITORY = os.environ.get("SAWLOG_REPOSITORY", "").rstrip("/")

COMPILED = "sawlog: the kernel was compiled"
NOT_COMPILED = (
    "sawlog: the kernel was NOT compiled; see the compiler output above. Everything works, but 20 to 200 times\n"
    "slower. Install gcc or clang and Python's headers, then install sawlog again."
)
BY_CHOICE = "sawlog: SAWLOG_PURE is set, the kernel is not compiled"


class BuildKernel(build_ext):
    """Builds the kernel, never reuses an earlier build, and reports at the end whether it compiled.

    setuptools skips an optional extension that fails to compile, and would package the stale one that an earlier build
    left in `build/`.
    """

    compiled = False

    def run(self) -> None:
        super().run()
        print(COMPILED if self.compiled else NOT_COMPILED, flush=True)

    def build_extension(self, ext: Extension) -> None:
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        super().build_extension(ext)  # raises if it does not compile
        self.compiled = True


def kernel_extensions() -> list[Any]:
    """Return the kernel extension; nothing if `SAWLOG_PURE` is set."""
    if os.environ.get("SAWLOG_PURE", "0") not in {"", "0"}:
        print(BY_CHOICE, flush=True)
        return []
    from Cython.Build import cythonize  # a pure install needs no Cython

    # -g0: debug information is three quarters of the file. Not abi3, although one wheel would fit all Pythons: encoding
    # a list is 25 % slower with it. Aligned, because an edit of one unit would otherwise move the loops of all others,
    # and an unlucky alignment makes a short loop up to 1.5 times slower.
    compile_args = [] if os.name == "nt" else ["-O3", "-g0", "-falign-functions=32", "-falign-loops=32"]
    extensions = cythonize(
        [Extension(KERNEL_MODULE, [KERNEL_SOURCE], include_dirs=[KERNEL_FOLDER], extra_compile_args=compile_args)],
        build_dir="build/cython",  # generated C next to the source would end up in the wheel
        quiet=True,
    )
    for extension in extensions:
        # Names the file: Python prefers an extension next to __init__.py. Cython needs the module's real name above.
        extension.name = f"{KERNEL_MODULE}.__init__"
        extension.optional = True  # cythonize() drops this; without it, an install without a compiler fails
    return list(extensions)


def long_description() -> str:
    """Return README.md for the package index: relative links lead to the repository, or are plain text without one."""
    text = Path("README.md").read_text(encoding="utf-8")
    relative = r"\((?!\w+:|#)([^)\s]+)\)"
    if not REPOSITORY:
        text = re.sub(rf"!\[[^]]*\]{relative}\n*", "", text)
        return re.sub(rf"\[([^]]*)\]{relative}", r"\1", text)
    text = re.sub(rf"(!\[[^]]*\]){relative}", rf"\1({REPOSITORY}/raw/v{VERSION}/\2)", text)
    return re.sub(rf"(\[[^]]*\]){relative}", rf"\1({REPOSITORY}/blob/v{VERSION}/\2)", text)


def project_urls() -> dict[str, str]:
    """Return the links that the package index shows beside the description."""
    if not REPOSITORY:
        return {}
    changes = f"{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md"
    return {"Repository": REPOSITORY, "Issues": f"{REPOSITORY}/issues", "Changelog": changes}


setup(
    version=VERSION,
    long_description=long_description(),
    long_description_content_type="text/markdown",
    project_urls=project_urls(),
    ext_modules=kernel_extensions(),
    cmdclass={"build_ext": BuildKernel},
)
