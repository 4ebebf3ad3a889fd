"""One atheris run over one target: `python -m tests.faults.fuzz.covering TARGET CORPUS SEEDS [libFuzzer's options]`.

Started by `run --coverage` with a package on its path whose kernel is interpreted, so that coverage is seen there, too.
Nothing of ours may be imported before atheris watches.
"""

from __future__ import annotations

import random
import sys

import atheris


def main() -> None:
    """Give inputs to the target until libFuzzer has had enough."""
    name, folder, seeds, *limits = sys.argv[1:]
    with atheris.instrument_imports(include=["sawlog", "json"]):
        from .targets import TARGETS
    target = TARGETS[name]
    known = target.seeds()

    def change(data: bytes, most: int, seed: int) -> bytes:
        """Half of the inputs are changed by who knows the format, half by libFuzzer."""
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return target.mutate(data, known, chance)[:most]
        return bytes(atheris.Mutate(data, most))

    atheris.Setup([sys.argv[0], *limits, folder, seeds], target.call, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
