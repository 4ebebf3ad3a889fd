"""Report whether the kernel is compiled, and warn if it is not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from .batch import kernel


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """Build of the kernel in this process: compiled or interpreted, and the file it was loaded from."""

    compiled: bool
    path: str

    def __str__(self) -> str:
        if self.compiled:
            return f"compiled kernel: {self.path}"
        return (
            f"interpreted kernel: {self.path}; everything works, but 20 to 200 times slower. Install a C compiler, "
            "then run `make kernel` or `pip install .` in a clone of sawlog"
        )


def kernel_info() -> KernelInfo:
    """Return whether the per-record code is compiled, and where it was loaded from."""
    return KernelInfo(bool(kernel.COMPILED), str(kernel.__file__))


if not kernel.COMPILED:
    warnings.warn(f"sawlog: {kernel_info()}", RuntimeWarning, stacklevel=3)
