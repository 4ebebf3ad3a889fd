"""Build the kernel with Cython where there is a C compiler, and install without it where there is none.

Everything else about the package is in pyproject.toml. `SAWLOG_PURE=1` skips the compiler by choice; the
wheel is then `py3-none-any`. The package runs the same source either way: `sawlog.kernel_info()` says which. A build
says it in its last line, which pip shows only with -v; `python -m sawlog` says it afterwards.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNEL_MODULE = "sawlog.batch.kernel"
KERNEL_FOLDER = "src/sawlog/batch/kernel"
KERNEL_SOURCE = f"{KERNEL_FOLDER}/__init__.pyx"  # it includes the units


COMPILED = "sawlog: the kernel was compiled"
NOT_COMPILED = (
    "sawlog: the kernel was NOT compiled, the compiler's words are above. Everything works, but 20 to 200 times\n"
    "slower. Install gcc or clang and Python's headers, then install sawlog again."
)
BY_CHOICE = "sawlog: SAWLOG_PURE is set, the kernel is not compiled"


class BuildKernel(build_ext):
    """Never hands out the result of an earlier build, and says at its end whether it compiled anything.

    An optional extension that fails to compile is passed over, and what an earlier build left in `build/`
    would be taken in its place: a kernel that is not the one in the source.
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
    """The compiled kernel, or nothing when the caller asked for plain Python."""
    if os.environ.get("SAWLOG_PURE", "0") not in {"", "0"}:
        print(BY_CHOICE, flush=True)
        return []
    from Cython.Build import cythonize  # a pure install needs no Cython

    # -g0: debug information is three quarters of the file. Not abi3, though it would give one wheel for all
    # Pythons: encoding a list is 25 % slower with it. Aligned: else an edit of one unit moves the loops of all others,
    # and where a short loop happens to stand makes it up to one and a half times as slow.
    compile_args = [] if os.name == "nt" else ["-O3", "-g0", "-falign-functions=32", "-falign-loops=32"]
    extensions = cythonize(
        [Extension(KERNEL_MODULE, [KERNEL_SOURCE], include_dirs=[KERNEL_FOLDER], extra_compile_args=compile_args)],
        build_dir="build/cython",  # beside the source, the generated C would be packed into the wheel
        quiet=True,
    )
    for extension in extensions:
        # The file's name: beside __init__.py, where Python prefers it. Cython has to know the module by its own.
        extension.name = f"{KERNEL_MODULE}.__init__"
        extension.optional = True  # cythonize() drops this; without it an install with no compiler fails
    return list(extensions)


setup(ext_modules=kernel_extensions(), cmdclass={"build_ext": BuildKernel})
