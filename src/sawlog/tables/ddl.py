"""Types as text, in SQL's way: `id int, tags array<string>, place struct<lat: double, lon: double>`.

The words are those of Spark. Integers of one and two bytes become `int`: Iceberg has no smaller one, and a table should
look the same in every format. Read here rather than by Spark, so that a mistake is found before Spark is started.
"""

from __future__ import annotations

import re

import pyarrow as pa

from ..errors import InvalidConfig

_PLAIN: dict[str, pa.DataType] = {  # of several words for one type the first is the one that is shown
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "tinyint": pa.int32(),
    "byte": pa.int32(),
    "smallint": pa.int32(),
    "short": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_WORDS = {kind: word for word, kind in reversed(_PLAIN.items())}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\w[\w.-]*|[<>(),:])")


def parsed(text: str) -> pa.Schema:
    """The columns of a text such as `id int, name string`."""
    reader = _Reader(text)
    fields = [reader.column()]
    while reader.took(","):
        fields.append(reader.column())
    reader.expect_end()
    return pa.schema(fields)


def parsed_type(text: str) -> pa.DataType:
    """One type, such as `array<int>`."""
    reader = _Reader(text)
    kind = reader.type()
    reader.expect_end()
    return kind


def shown(kind: pa.DataType) -> str:
    """A type as text; `InvalidConfig` if it has none."""
    if kind in _WORDS:
        return _WORDS[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{shown(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{shown(kind.key_type)},{shown(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_quoted(field.name)}:{shown(field.type)}' for field in kind)}>"
    raise InvalidConfig(f"a table has no columns of the type {kind}")


def shown_schema(schema: pa.Schema) -> str:
    """Columns as text."""
    return ", ".join(f"{_quoted(field.name)} {shown(field.type)}" for field in schema)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


class _Reader:
    """A text, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _wrong(self, wanted: str) -> InvalidConfig:
        there = self._text[self._at : self._at + 20].strip() or "its end"
        return InvalidConfig(
            f"the schema {self._text!r} cannot be read at {there!r}: expected {wanted}. An example of a schema: "
            "'id bigint, name string, tags array<string>'"
        )

    def _next(self, wanted: str) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._wrong(wanted)
        self._at = found.end()
        return found[1]

    def took(self, token: str) -> bool:
        """Whether this comes next; then it is taken."""
        found = _TOKEN.match(self._text, self._at)
        if found is None or found[1].lower() != token:
            return False
        self._at = found.end()
        return True

    def _expect(self, token: str) -> None:
        if not self.took(token):
            raise self._wrong(repr(token))

    def expect_end(self) -> None:
        """Nothing more may come."""
        if self._text[self._at :].strip():
            raise self._wrong("',' or the end")

    def _name(self) -> str:
        before = self._at
        token = self._next("a name")
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.match(r"\w", token):
            self._at = before
            raise self._wrong("a name")
        return token

    def column(self) -> pa.Field:
        """A name and a type, as in a table or in a struct."""
        name = self._name()
        self.took(":")
        kind = self.type()
        if self.took("not"):
            self._expect("null")
        if self.took("comment"):
            self._next("a text in quotes")
        return pa.field(name, kind)

    def type(self) -> pa.DataType:
        """A type."""
        before = self._at
        word = self._next("a type").lower()
        if word in ("decimal", "numeric", "dec"):
            return self._decimal()
        if word in ("varchar", "char"):
            self._expect("(")
            self._next("a length")
            self._expect(")")
            return pa.string()
        if word == "array":
            self._expect("<")
            inner = self.type()
            self._expect(">")
            return pa.list_(pa.field("element", inner))
        if word == "map":
            return self._map()
        if word == "struct":
            return self._struct()
        if word not in _PLAIN:
            self._at = before
            raise self._wrong(f"a type: {', '.join(sorted(_PLAIN))}, decimal(p,s), array<…>, map<…,…> or struct<…>")
        return _PLAIN[word]

    def _decimal(self) -> pa.DataType:
        precision, scale = "10", "0"
        if self.took("("):
            precision = self._next("a number of digits")
            if self.took(","):
                scale = self._next("a number of digits")
            self._expect(")")
        if not (precision.isdecimal() and scale.isdecimal() and 1 <= int(precision) <= 38 >= int(scale)):
            raise self._wrong("decimal(p,s) with at most 38 digits")
        return pa.decimal128(int(precision), int(scale))

    def _map(self) -> pa.DataType:
        self._expect("<")
        key = self.type()
        self._expect(",")
        value = self.type()
        self._expect(">")
        return pa.map_(key, value)

    def _struct(self) -> pa.DataType:
        self._expect("<")
        fields = [self.column()]
        while self.took(","):
            fields.append(self.column())
        self._expect(">")
        return pa.struct(fields)
