"""What the compiler is told of names and numbers is what plain Python is told."""

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
    for name in interpreted.__all__:
        assert hasattr(packaged, name)
    assert {name: getattr(packaged, name) for name in NUMBERS if hasattr(packaged, name)}.items() <= NUMBERS.items()


def _bare(tree: ast.AST) -> list[int]:
    """The lines in which a column of `rows`, or of a `row`, is a number."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            name = getattr(node.value, "attr", getattr(node.value, "id", ""))
            several = isinstance(node.slice, ast.Tuple) and node.slice.elts
            column = several[-1] if several else node.slice
            named = not (isinstance(column, ast.Constant) and isinstance(column.value, int))
            if not named and (name == "row" or (name == "rows" and isinstance(node.slice, ast.Tuple))):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("layer", ["batch", "storage", "log", "topics", "interop", "cli"])
def test_the_columns_of_a_row_have_names(layer: str) -> None:
    package = SOURCE.parent.parent.parent
    files = sorted((package / layer).rglob("*.py"))
    assert files
    assert [(str(file), line) for file in files for line in _bare(ast.parse(file.read_text()))] == []


@pytest.mark.parametrize("line", ["rows[q, 3]", "chunk.rows[-1, 3]", "rows[:, 12]", "self.rows[self.q, 4]", "row[2]"])
def test_a_column_without_a_name_is_noticed(line: str) -> None:
    assert _bare(ast.parse(line)) == [1]


@pytest.mark.parametrize("line", ["rows[q, BASE]", "rows[2]", "row[LAST]", "tuple[()]", "tuple[int, ...]"])
def test_other_subscripts_are_not_columns_without_a_name(line: str) -> None:
    assert _bare(ast.parse(line)) == []
