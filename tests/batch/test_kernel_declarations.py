"""The compiled and the interpreted kernel have the same names and numbers."""

from __future__ import annotations

import ast
import re

import pytest

from sawlog.batch import kernel as packaged

from .twins import SOURCE, interpreted

DECLARED = interpreted.declarations
NUMBERS = {name: value for name, value in vars(DECLARED).items() if name.isupper()}
TOLD = (SOURCE.parent / "declarations.pxi").read_text()


def test_both_files_name_the_same_numbers() -> None:
    told = {name: int(value, 0) for name, value in re.findall(r"^    ([A-Z_]+) = (\w+)$", TOLD, re.MULTILINE)}
    assert told == NUMBERS


@pytest.mark.parametrize("structure", ["Fields", "Walk"])
def test_both_files_give_a_structure_the_same_parts(structure: str) -> None:
    _, _, after = TOLD.partition(f"cdef struct {structure}:\n")
    parts = re.findall(r"^    [\w ]+ (\w+)$", after.partition("\n\n")[0], re.MULTILINE)
    assert sorted(parts) == sorted(getattr(DECLARED, structure).__slots__)


def test_the_package_exports_what_it_says_it_does_compiled_or_not() -> None:
    init = ast.parse(SOURCE.read_text())
    names = [alias.name for node in ast.walk(init) if isinstance(node, ast.ImportFrom) for alias in node.names]
    for name in {*names} - {"annotations", "TYPE_CHECKING", "*"}:
        assert hasattr(packaged, name)
    assert {name: getattr(packaged, name) for name in NUMBERS if hasattr(packaged, name)}.items() <= NUMBERS.items()
