"""The members of a class or function for the reference: name, signature, text.

The compiled kernel has neither signatures nor field types; for its classes the stub, typed.pyi, is read instead.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, ForwardRef, Literal

from sphinx.pycode import ModuleAnalyzer

from sawlog.batch import kernel

Kind = Literal["attribute", "class", "data", "exception", "function", "method", "property"]

#: Special methods that a program uses by an operator or a statement, and `help` explains.
OPERATORS = (
    "__len__",
    "__iter__",
    "__next__",
    "__aiter__",
    "__anext__",
    "__contains__",
    "__getitem__",
    "__call__",
    "__await__",
    "__bool__",
)
#: Shown for themselves, where an inherited member stands: not in every class that has them.
_STANDARD = (object, tuple, Exception, BaseException)


@dataclasses.dataclass(frozen=True)
class Member:
    """A name in the reference."""

    kind: Kind
    name: str
    signature: str  # (parameters) -> result; empty if it is not callable
    text: str
    options: dict[str, str]


def described(name: str, found: Any, *, constructor: bool = True) -> Member:
    """A class or a function of a module."""
    if isinstance(found, type):
        kind: Kind = "exception" if issubclass(found, BaseException) else "class"
        signature = _constructor(found) if constructor else ""
        return Member(kind, name, signature, _own_text(found), {"final": ""} if _is_final(found) else {})
    if callable(found):
        is_async = {"async": ""} if inspect.iscoroutinefunction(found) else {}
        return Member("function", name, signature_of(found), _text(found), is_async)
    return Member("data", name, "", "", {"type": type(found).__name__, "value": repr(found)})


def members(found: type) -> Iterator[Member]:
    """The public members of a class: its fields, then what can be called, in the order of the source."""
    if found.__module__.startswith(kernel.__name__):
        yield from _stub_members(found.__name__)
        return
    yield from _fields(found)
    shown = set(_field_names(found))
    for owner in found.__mro__:
        if owner in _STANDARD or not owner.__module__.startswith("sawlog"):
            continue
        for name, value in vars(owner).items():
            if name in shown or not (name in OPERATORS or not name.startswith("_")):
                continue
            member = _member(name, value)
            if member is not None and (member.text or not name.startswith("_")):
                shown.add(name)
                yield member


def _member(name: str, value: Any) -> Member | None:
    if isinstance(value, property):
        result = inspect.signature(value.fget).return_annotation if value.fget else inspect.Signature.empty
        return Member("property", name, "", _text(value), {"type": _annotation(result)} if _is_set(result) else {})
    if isinstance(value, classmethod | staticmethod):
        options = {"classmethod" if isinstance(value, classmethod) else "staticmethod": ""}
        drop = isinstance(value, classmethod)
        return Member("method", name, signature_of(value.__func__, drop_first=drop), _text(value.__func__), options)
    if inspect.isfunction(value):
        options = {"async": ""} if inspect.iscoroutinefunction(value) else {}
        return Member("method", name, signature_of(value, drop_first=True), _text(value), options)
    return None


# --- signatures ------------------------------------------------------------------------------------------------------


def signature_of(function: Callable[..., Any], *, drop_first: bool = False) -> str:
    """`(parameters) -> result`, with annotations as they are written in the source."""
    found = inspect.signature(function)
    parameters = list(found.parameters.values())[1 if drop_first else 0 :]
    result = f" -> {_annotation(found.return_annotation)}" if _is_set(found.return_annotation) else ""
    return f"({', '.join(_parameters(parameters))}){result}"


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Each parameter, with `/` and `*` where they belong."""
    previous = None
    for parameter in parameters:
        if previous is inspect.Parameter.POSITIONAL_ONLY and parameter.kind is not previous:
            yield "/"
        named = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if named and previous not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL):
            yield "*"
        yield _parameter(parameter)
        previous = parameter.kind
    if previous is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def _parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        text = f"*{text}"
    elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
        text = f"**{text}"
    if _is_set(parameter.annotation):
        text += f": {_annotation(parameter.annotation)}"
    if _is_set(parameter.default):
        text += f" = {_default(parameter.default)}" if ":" in text else f"={_default(parameter.default)}"
    return text


def _default(value: object) -> str:
    text = repr(value)
    return "..." if "<" in text else text  # an object whose address differs from run to run


def _annotation(found: object) -> str:
    if isinstance(found, ForwardRef):
        return found.__forward_arg__
    return found if isinstance(found, str) else str(inspect.formatannotation(found))


def _is_set(found: object) -> bool:
    return found is not inspect.Parameter.empty


def _constructor(found: type) -> str:
    if found.__module__.startswith(kernel.__name__):
        return _stub_signature(_stub_method(found.__name__, "__init__"))
    own = any("__init__" in vars(owner) for owner in found.__mro__ if owner.__module__.startswith("sawlog"))
    is_protocol = getattr(found, "_is_protocol", False)
    if is_protocol or not (own or hasattr(found, "_fields")):
        return ""
    without_result = inspect.signature(found).replace(return_annotation=inspect.Signature.empty)
    return f"({', '.join(_parameters(list(without_result.parameters.values())))})"


# --- fields ----------------------------------------------------------------------------------------------------------


def _field_names(found: type) -> list[str]:
    if dataclasses.is_dataclass(found):
        return [field.name for field in dataclasses.fields(found) if not field.name.startswith("_")]
    return list(getattr(found, "_fields", ()))


def _fields(found: type) -> Iterator[Member]:
    """Fields of dataclasses and named tuples, with the comment above each."""
    of_dataclass = {field.name: field for field in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else {}
    for name in _field_names(found):
        owner = next(owner for owner in found.__mro__ if name in inspect.get_annotations(owner))
        field = of_dataclass.get(name)
        options = {"type": _annotation(inspect.get_annotations(owner)[name])}
        default = field.default if field else getattr(found, "_field_defaults", {}).get(name, dataclasses.MISSING)
        if default is not dataclasses.MISSING:
            options["value"] = _default(default)
        yield Member("attribute", name, "", _comment(owner, name), options)


def _comment(owner: type, name: str) -> str:
    """The `#:` lines above a field."""
    return "\n".join(_comments(owner.__module__).get((owner.__qualname__, name), ())).strip()


@cache
def _comments(module: str) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = ModuleAnalyzer.for_module(module).find_attr_docs()
    return found


# --- texts -----------------------------------------------------------------------------------------------------------


def _text(found: Any) -> str:
    return inspect.getdoc(found) or ""


def _own_text(found: type) -> str:
    """Return the docstring of the class itself, without the parts that the reference shows elsewhere.

    `dataclass` puts a signature into it; the kernel's `Record` lists its signature and its fields for `help`.
    """
    paragraphs = inspect.cleandoc(vars(found).get("__doc__") or "").split("\n\n")
    if found.__module__.startswith(kernel.__name__):
        paragraphs = [text for text in paragraphs if not text.startswith(" ")]
    return "\n\n".join(text for text in paragraphs if not text.startswith(f"{found.__name__}("))


def _is_final(found: type) -> bool:
    return bool(getattr(found, "__final__", False))


# --- the kernel's stub -----------------------------------------------------------------------------------------------


@cache
def _stub() -> ast.Module:
    return ast.parse((Path(str(kernel.__file__)).parent / "typed.pyi").read_text(encoding="utf-8"))


def _stub_class(name: str) -> ast.ClassDef:
    return next(node for node in _stub().body if isinstance(node, ast.ClassDef) and node.name == name)


def _stub_method(of: str, name: str) -> ast.FunctionDef:
    return next(node for node in _stub_class(of).body if isinstance(node, ast.FunctionDef) and node.name == name)


def _stub_members(of: str) -> Iterator[Member]:
    for node in _stub_class(of).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            text = ast.get_docstring(node) or ""
            if any(isinstance(made, ast.Name) and made.id == "property" for made in node.decorator_list):
                assert node.returns is not None, f"{of}.{node.name} has no type in the stub"
                yield Member("property", node.name, "", text, {"type": ast.unparse(node.returns)})
            else:
                yield Member("method", node.name, _stub_signature(node), text, {})


def _stub_signature(node: ast.FunctionDef) -> str:
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    del arguments.args.args[0]  # self
    result = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    return f"({ast.unparse(arguments.args)}){result}"
