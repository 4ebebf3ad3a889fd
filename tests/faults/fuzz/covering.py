"""One atheris run over one target: `python -m tests.faults.fuzz.covering TARGET CORPUS SEEDS [libFuzzer's options]`.

Started by `run --coverage`, with a package on its path whose kernel is interpreted, so that its coverage counts too.
atheris must instrument our modules when they are imported, so none is imported before.
"""

from __future__ import annotations

import random
import sys

import atheris


def main() -> None:
    """Run the target until libFuzzer reaches its limits."""
    name, folder, seeds, *limits = sys.argv[1:]
    with atheris.instrument_imports(include=["sawlog", "json"]):
        from .targets import TARGETS
    target = TARGETS[name]
    known = target.seeds()

    def change(data: bytes, most: int, seed: int) -> bytes:
        """Mutate half of the inputs with knowledge of the format, and half with libFuzzer."""
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return target.mutate(data, known, chance)[:most]
        return bytes(atheris.Mutate(data, most))

    atheris.Setup([sys.argv[0], *limits, folder, seeds], target.call, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
