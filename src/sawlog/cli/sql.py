"""`sawlog sql`: runs a query over topics and files, or lets one type them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .fitting import Column
from .options import Data, Output
from .output import Output as Printer
from .output import OutputFormat, Row
from .places import open_any
from .read import IsolationLevel, IsolationOption

if TYPE_CHECKING:
    import pyarrow as pa

    from ..objects.store import ObjectStore
    from ..topics.store import Store


def sql(
    query: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="The query.  [default: from stdin, or typed at a prompt]"),
    ] = None,
    data: Data = ...,  # type: ignore[assignment]  # typer's sign for an option that is required
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema",
            metavar="TOPIC=SCHEMA",
            help="Read the values of a topic with this schema, or with the one in @FILE; nothing after = keeps them as "
            "bytes. Can be repeated.  [default: what the topic declares]",
        ),
    ] = None,
    isolation: IsolationOption = IsolationLevel.COMMITTED,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Run SQL over topics: each is a table with the columns partition, offset, timestamp, key, value and headers.

    key and value are bytes: compare them with text as it is, show them with decode(value). If the topic declares a
    schema, value is a struct and its fields are value.name. Without a schema, decode(value)->>'$.name' takes a field
    out of JSON. Filters on offset, partition and timestamp read only what they leave, and count(*), min and max of
    offset and timestamp read no record at all.

    The query may also name files: 'prices.parquet', 'customers.csv'. It sees what is there when it begins, and changes
    nothing. A topic whose name has dots or dashes needs double quotes. The language is DuckDB's; it has to be installed
    (pip install '.[sql]').

    Without a query, it is read from stdin. At a terminal there is a prompt with history, and Tab completes names.

    \b
    Examples:
      sawlog sql -d data "select count(*), max(timestamp) from orders"
      sawlog sql -d data "select decode(key) as customer, count(*) from orders group by key order by 2 desc limit 10"
      sawlog sql -d data "select * from orders where timestamp between '2026-11-01' and '2026-11-02' limit 10"
      sawlog sql -d data "select decode(value)->>'$.status' as status, count(*) from orders group by all" --output csv
      sawlog sql -d data --schema orders='id BIGINT, amount DOUBLE' "select sum(value.amount) from orders"
      sawlog sql -d data "select o.offset, c.name from orders o join 'customers.csv' c on decode(o.key) = c.id"
      sawlog sql -d data
    """
    schemas = _schemas(schema)
    with open_any(data) as store:
        if query is None and sys.stdin.isatty():
            from .prompt import Prompt

            Prompt(store, lambda text: _run(store, text, schemas, isolation, output)).loop()
            return
        _run(store, sys.stdin.read() if query is None else query, schemas, isolation, output)


def _schemas(given: list[str] | None) -> dict[str, str | None]:
    made: dict[str, str | None] = {}
    for pair in given or ():
        topic, equals, text = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not TOPIC=SCHEMA", param_hint="--schema")
        made[topic] = (Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text) or None
    return made


def _run(
    store: Store | ObjectStore,
    query: str,
    schemas: dict[str, str | None],
    isolation: IsolationLevel,
    output: OutputFormat,
) -> None:
    with ExitStack() as last:
        batches = last.enter_context(store.sql_reader(query, schemas=schemas, isolation=isolation.value))
        names = _distinct(batches.schema.names)
        Printer(output).rows(_rows(batches, names), [Column(name, name, cut=len(names) > 1) for name in names])


def _distinct(names: list[str]) -> list[str]:
    """Return the names of the columns, each once: a result can have two of one name, a row cannot."""
    made: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in made:
            number += 1
            candidate = f"{name}_{number}"
        made.append(candidate)
    return made


def _rows(batches: pa.RecordBatchReader, names: list[str]) -> Iterator[Row]:
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield dict(zip(names, map(_plain, row), strict=True))


def _plain(value: Any) -> Any:
    """Return a value as the other commands would have it: times in ISO's form, whole numbers as numbers."""
    if isinstance(value, (datetime, date)):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
