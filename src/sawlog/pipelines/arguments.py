"""The parameters of a job: a frozen dataclass whose fields have help texts is also its command line.

`parse` is for `python -m` and `spark-submit`; the program `sawlog` has its own command line. A field `every_s` becomes
`--every-s`; a tuple of names is separated by commas; a flag has a `--no-` form.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import SawlogError
from . import running

P = TypeVar("P")


def option(help: str, default: Any = dataclasses.MISSING) -> Any:
    """A field of the parameters, with its help text."""
    return dataclasses.field(default=default, metadata={"help": help})


def parse(kind: type[P], arguments: Sequence[str], about: str) -> P:
    """Parse the parameters from a command line."""
    parser = argparse.ArgumentParser(prog=kind.__module__.rpartition(".")[2], description=about)
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        _add(parser, field, _plain(hints[field.name]))
    return kind(**vars(parser.parse_args(arguments)))


def _add(parser: argparse.ArgumentParser, field: dataclasses.Field[Any], kind: Any) -> None:
    name, about = f"--{field.name.replace('_', '-')}", field.metadata["help"]
    required = field.default is dataclasses.MISSING
    if kind is bool:
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default, help=about)
        return
    reader: Callable[[str], Any] = _names if typing.get_origin(kind) is tuple else kind
    default = None if required else field.default
    parser.add_argument(name, type=reader, required=required, default=default, help=about)


def _plain(kind: Any) -> Any:
    """The type of a field without the `| None`."""
    if isinstance(kind, types.UnionType):
        [kind] = [each for each in typing.get_args(kind) if each is not type(None)]
    return str if typing.get_origin(kind) is typing.Literal else kind


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def run_main(
    kind: type[P],
    run: Callable[..., Any],
    arguments: Sequence[str] | None,
    about: str,
    *,
    check: Callable[[P], object] | None = None,
    needs_spark: bool = True,
) -> int:
    """Runs a job from a command line: uses the active session or a new one, prints the report as JSON on stdout.

    `check` raises errors in the parameters that can be detected before Spark is started.
    """
    params = parse(kind, sys.argv[1:] if arguments is None else arguments, about)
    try:
        if check is not None:
            check(params)
        if needs_spark:
            running.check_packages()
        report = run(running.session(), params) if needs_spark else run(params)
    except SawlogError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(dataclasses.asdict(report), default=str) + "\n")
    return 0 if getattr(report, "ok", True) else 4
