"""`sawlog help`: all commands, the exit codes and examples of all tasks, or the help of one command."""

from __future__ import annotations

import typer

from .options import Output, argument
from .output import Printer, columns
from .program import COMMANDS, command

#: The meaning of each exit code.
EXIT_CODES = {
    0: "success",
    1: "failure; the line on stderr says why",
    2: "usage error",
    3: "the store, topic, group, log or file does not exist",
    4: "corruption was found",
    5: "locked by another process: another writer, or live members of a group",
    130: "interrupted",
}

#: Examples to copy and adapt. A test runs them from top to bottom.
EXAMPLES = """\
# Once: name the store, and install completion for your shell
export SAWLOG_DATA=data
sawlog --install-completion

# Topics
sawlog topic create orders --partitions 4 --set retention.ms=7d --set compression.type=zstd
sawlog topic describe orders
sawlog topic alter orders --set retention.bytes=10GiB
sawlog topic trim orders --to @-7d --dry-run

# Writing (create the topic first)
for topic in greetings prices logs photos copy; do sawlog topic create $topic --if-not-exists; done
echo hello | sawlog produce greetings
sawlog produce orders orders.ndjson --key customer.id --timestamp placed_at
sawlog produce prices prices.csv --key symbol --value price
tail -F app.log | sawlog produce logs --header host=web1
sawlog produce photos cat.jpg --input file --key cat

# Reading
sawlog read orders --tail 100                       # the last 100 records
sawlog read orders -o @-1h: --output ndjson | jq .  # the last hour
sawlog read orders -o @2026-11-01:2026-11-02        # one day
sawlog read orders -o end --follow                  # new records only, until Ctrl-C
sawlog read orders -f '%d %p/%o %k: %v\\n' -n 10     # your own format
sawlog read orders --grep '(?i)error' -o -10000     # search
sawlog read orders --out orders.parquet             # for pandas, DuckDB, Spark
sawlog read orders --output ndjson | sawlog produce copy --input records

# SQL over topics and files
sawlog sql "select count(*), max(timestamp) from orders"
sawlog sql --schema orders='status STRING' "select value.status, count(*) from orders group by all"
sawlog sql                                          # a prompt with history and completion

# Consumer groups
sawlog groups list
sawlog groups describe billing
sawlog groups seek billing --to @-1h --dry-run

# Import from other systems, export to them
sawlog import /var/lib/kafka --dry-run              # show what would be imported
sawlog import /var/lib/kafka orders                 # keeps offsets; run it again to continue
sawlog export orders out --format kafka

# Maintenance
sawlog stats orders --plot orders.svg
sawlog verify
sawlog inspect data/topics/orders/partition-0/00000000000000000000.log
sawlog repair --plan
sawlog doctor
"""

_GUIDE = """\
A segmented commit log without a server: topics, records and consumer groups in a
data directory.

A store holds topics. A topic is a log of records, split into partitions. A record
has a value and, optionally, a key, headers and a timestamp; its offset is its
number in its partition: 0, 1, 2, and so on. A consumer group stores the offsets up
to which it has read.

Name the store with -d DIR or the environment variable SAWLOG_DATA. The commands
topic, produce, read, groups, user, acl and stats also work through a broker
(`sawlog serve`): name it with -b HOST:PORT or SAWLOG_BROKER. Commands that only
read take no lock and can run next to a writer. Data goes to stdout, everything
else to stderr. In scripts, use --output json, ndjson or csv.

Commands:
{commands}

Exit codes:
{codes}

Examples:
{examples}"""


def show_help(
    name: list[str] | None = argument("[COMMAND]...", "The command, such as topic create.  [default: all]"),
    output: Output = "table",
) -> None:
    """Show all commands, the exit codes and examples of all tasks, or the help of one command.

    \b
    Examples:
      sawlog help
      sawlog help topic create
      sawlog help --output json
    """
    printer = Printer(output)
    if name:
        printer.line(_help_of(name))
    elif printer.for_people:
        printer.line(guide().rstrip("\n"))
    else:
        rows = [{"command": each, "summary": summary} for each, (summary, _, _) in COMMANDS.items()]
        printer.rows(rows, columns("command summary"))
    printer.flush()


def guide() -> str:
    """Return the text of `sawlog help`."""
    return _GUIDE.format(
        commands="\n".join(f"  {name:<11}  {summary}" for name, (summary, _, _) in COMMANDS.items()),
        codes="\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items()),
        examples="\n".join(f"  {line}".rstrip() for line in EXAMPLES.splitlines()) + "\n",
    )


def _help_of(path: list[str]) -> str:
    found = command()
    context = found.context_class(found, info_name="sawlog", **found.context_settings)
    for name in path:
        below = found.get_command(context, name) if hasattr(found, "get_command") else None
        if below is None:
            raise typer.BadParameter(f"no command {' '.join(path)!r}; `sawlog help` lists all commands")
        context = below.context_class(below, info_name=name, parent=context)
        found = below
    return str(found.get_help(context)).rstrip("\n")
