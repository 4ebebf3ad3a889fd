"""No module assigns fields of another module's objects: a change of an object is a method of its class.

A field may be assigned in the module that defines its class, for example by a function that creates an object and fills
it. Types are unknown here, so a field belongs to a module if one of its classes has a field of that name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .looping import for_each

SOURCE = Path(__file__).resolve().parent.parent / "src" / "sawlog"
PACKAGES = ("log", "store", "interop", "spark", "pipelines")
FILES = [
    path
    for name in PACKAGES
    for path in sorted((SOURCE / name).rglob("*.py"))
    if not {"objects", "replica"} & {*path.parts}
]

#: Permitted exceptions: field, module and reason.
ALLOWED = {
    ("log/active_segment.py", "segment.tail"): "at every append, where a call would cost a percent",
    ("log/appender.py", "active.unfinished"): "one bytecode: an interrupt could come between a call and its effect",
    (
        "log/appender.py",
        "self.active.unfinished",
    ): "one bytecode: an interrupt could come between a call and its effect",
    ("log/writer.py", "builder.taken"): "a field of the compiled builder, which is given back so",
    ("interop/foreign.py", "made._value_"): "how the standard library makes a member of an enumeration",
    ("log/appender.py", "weakref.finalize(self, held.release).atexit"): "how the standard library is told",
}


def _targets(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign() | ast.Delete():
            return node.targets
        case ast.AugAssign() | ast.AnnAssign() | ast.For() | ast.AsyncFor():
            return [node.target]
        case ast.withitem():
            return [node.optional_vars] if node.optional_vars is not None else []
        case _:
            return []


#: Statements, and the parts of statements that have others or assign.
_PARTS = (ast.stmt, ast.ExceptHandler, ast.match_case, ast.withitem)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement, nested ones too, and the targets of `with`. Expressions contain none."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += (each for each in ast.iter_child_nodes(node) if isinstance(each, _PARTS))


def _assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every field that is assigned anywhere."""
    for node in _statements(tree):
        for target in _targets(node):
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load):
                    yield part


def _is_own(field: ast.Attribute) -> bool:
    return isinstance(field.value, ast.Name) and field.value.id in ("self", "cls")


def _fields(tree: ast.AST) -> set[str]:
    """The fields of the classes of a module."""
    found: set[str] = set()
    for each in (node for node in _statements(tree) if isinstance(node, ast.ClassDef)):
        found.update(field.attr for field in _assigned(each) if _is_own(field))
        for line in each.body:
            found.update(target.id for target in _targets(line) if isinstance(target, ast.Name))
    return found


def strange(source: str) -> list[str]:
    """Return the fields that a module assigns although it does not define their class."""
    tree = ast.parse(source)
    mine = _fields(tree)
    return [ast.unparse(field) for field in _assigned(tree) if not _is_own(field) and field.attr not in mine]


# Parses the modules of five packages.
@pytest.mark.costly
def test_a_module_assigns_only_fields_of_its_own_classes() -> None:
    found = [
        (name, field)
        for file in FILES
        for name in [file.relative_to(SOURCE).as_posix()]
        for field in strange(file.read_text(encoding="utf-8"))
    ]
    assert [each for each in found if each not in ALLOWED] == [], "give the owning class a method for it"


def test_every_exception_is_needed() -> None:
    for name, field in ALLOWED:
        assert field in strange((SOURCE / name).read_text(encoding="utf-8")), (name, field)


@for_each(
    "line",
    [
        "segment.tail = 1, 2",
        "segment.size += 1",
        "a, segment.tail = b, c",
        "for segment.tail in tails: pass",
        "with opened() as segment.file: pass",
        "del segment.tail",
        "self.segment.tail = 1, 2",
        "segment.tail: int = 1",
    ],
)
def test_a_foreign_field_is_noticed(line: str) -> None:
    source = f"class Mine:\n    def change(self, segment):\n        self.own = 1\n        {line}\n"
    assert len(strange(source)) == 1


@for_each("line", ["self.own = 2", "cls.made = 2", "made.own = 2", "made.kind = 2", "segment = made.own"])
def test_an_own_field_is_let_through(line: str) -> None:
    source = f"class Mine:\n    kind: int = 1\n    def change(self, made):\n        self.own = 1\n        {line}\n"
    assert strange(source) == []
