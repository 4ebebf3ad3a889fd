"""`sawlog user`: add, list and delete the users of a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..broker.security.mechanisms import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, Salted
from .helping import Command, CommandGroup
from .options import BrokerAt, MaybeData, Output, Yes
from .output import Column, OutputFormat, note
from .output import Output as Printer
from .places import open_users
from .terminal import confirm, new_password

users = typer.Typer(help="Add, list and delete users of the broker.", cls=CommandGroup, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="USER", help="The name of the user.")]


@users.command(cls=Command)
def add(
    name: Name,
    data: MaybeData = None,
    broker: BrokerAt = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="A file that contains the password; - is stdin.  [default: ask, or stdin if it is not a terminal]",
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            "--mechanism", "-m", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512; can be repeated. [default: both]"
        ),
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(
            min=MIN_ITERATIONS,
            max=MAX_ITERATIONS,
            metavar="N",
            help="The iteration count, which makes guessing passwords expensive.",
        ),
    ] = MAX_ITERATIONS,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Add a user, or change an existing user's password.

    The store keeps only a salted hash, never the password. A running broker accepts the user within a second. A broker
    authenticates users if its setting sasl_mechanisms is set.

    \b
    Examples:
      sawlog user add ann -d data
      sawlog user add ann -d data --password-file ann.password
      cat ann.password | sawlog user add ann -b 127.0.0.1:9092
    """
    for each in mechanism or ():
        if each not in MECHANISMS:
            raise typer.BadParameter(f"{' or '.join(sorted(MECHANISMS))}, not {each!r}", param_hint="--mechanism")
    chosen = sorted(set(mechanism or MECHANISMS))
    password = new_password(name, password_file)
    with open_users(data, broker, "w", create=True) as store:
        existed = name in store.list()
        store.put(name, [Salted.new(MECHANISMS[each], password, iterations) for each in chosen])
    if output is OutputFormat.TABLE:
        note(f"{name}: {'has a new password' if existed else 'added'}")
    else:
        Printer(output).item({"user": name, "mechanisms": chosen, "iterations": iterations, "existed": existed})


@users.command("list", cls=Command)
def list_users(data: MaybeData = None, broker: BrokerAt = None, output: Output = OutputFormat.TABLE) -> None:
    """List the users and their authentication mechanisms.

    \b
    Examples:
      sawlog user list -d data
      sawlog user list -b 127.0.0.1:9092 --output json
    """
    with open_users(data, broker) as store:
        found = store.list()
    rows = [{"user": name, "mechanisms": list(each), "iterations": list(each.values())} for name, each in found.items()]
    columns = [
        Column("user"),
        Column("mechanisms", shown=lambda names: " ".join(names or ())),
        Column("iterations", shown=lambda counts: " ".join(map(str, counts or ()))),
    ]
    Printer(output).rows(rows, columns, empty="no users yet; `sawlog user add NAME` adds one")


@users.command(cls=Command)
def delete(
    name: Name, data: MaybeData = None, broker: BrokerAt = None, yes: Yes = False, output: Output = OutputFormat.TABLE
) -> None:
    """Delete a user. Open connections stay authenticated until they close. Asks for confirmation unless --yes is given.

    \b
    Examples:
      sawlog user delete ann -d data --yes
    """
    confirm(f"delete the user {name}", yes)
    with open_users(data, broker, "w") as store:
        store.delete(name)
    if output is OutputFormat.TABLE:
        note(f"{name}: deleted")
    else:
        Printer(output).item({"user": name, "deleted": True})
