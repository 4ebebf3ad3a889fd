"""DDL, as Spark and most databases write it: `id BIGINT NOT NULL, tags ARRAY<STRING>, place STRUCT<lat: DOUBLE>`.

```
schema  = field ("," field)*
field   = name [":"] type ["NOT" "NULL"] ["DEFAULT" literal] ["COMMENT" text]
type    = word | DECIMAL "(" precision ["," scale] ")" | ARRAY "<" type ">" | MAP "<" STRING "," type ">"
        | STRUCT "<" schema ">"
name    = word, or anything between backticks or double quotes
```
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import InvalidConfig
from .types import MISSING, Field, ListOf, MapOf, Scalar, Schema, Type

_TYPES = {
    **dict.fromkeys(("boolean", "bool"), Scalar("boolean")),
    **dict.fromkeys(("byte", "tinyint", "short", "smallint", "int", "integer"), Scalar("int")),
    **dict.fromkeys(("long", "bigint"), Scalar("long")),
    **dict.fromkeys(("float", "real"), Scalar("float")),
    "double": Scalar("double"),
    **dict.fromkeys(("string", "varchar", "text", "char"), Scalar("string")),
    **dict.fromkeys(("binary", "bytes", "blob"), Scalar("bytes")),
    "date": Scalar("date"),
    **dict.fromkeys(("timestamp", "timestamp_ltz", "timestamptz"), Scalar("timestamp")),
}
_TOKEN = re.compile(r"""\s*(`(?:[^`]|``)*`|"(?:[^"]|"")*"|'(?:[^']|'')*'|-?\d+(?:\.\d+)?|\w+|[<>(),:])""")
_SPACE = re.compile(r"\s*")
#: Maximum nesting of structs.
_MAX_DEPTH = 32


def parse(text: str) -> Schema:
    """Parse a list of columns."""
    return _Reader(_tokens(text)).fields(None, 0)


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches everywhere, possibly the empty string
        if at == len(text):
            return found
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidConfig(f"the schema cannot be read from {text[at : at + 20]!r} on; {_EXAMPLE}")
        found.append(match[1])
        at = match.end()


_EXAMPLE = "write it as `id BIGINT NOT NULL, name STRING`, as an Avro record or as a JSON Schema"


class _Reader:
    """Recursive-descent parser over tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, what: str) -> str:
        token = self._peek()
        if token is None:
            raise InvalidConfig(f"the schema ends where {what} should be; {_EXAMPLE}")
        self._at += 1
        return token

    def _take(self, *words: str) -> bool:
        """Consume these words if they come next; return whether they did."""
        ahead = self._tokens[self._at : self._at + len(words)]
        if tuple(each.lower() for each in ahead) != words:
            return False
        self._at += len(words)
        return True

    def _expect(self, token: str, where: str) -> None:
        found = self._next(f"{token!r}")
        if found != token:
            raise InvalidConfig(f"{where} needs {token!r}, not {found!r}; {_EXAMPLE}")

    def fields(self, end: str | None, depth: int) -> Schema:
        """Parse fields up to a token, or to the end."""
        found: list[Field] = []
        while True:
            found.append(self._field(depth))
            if self._take(","):
                continue
            if self._peek() == end:
                break
            raise InvalidConfig(f"after the field {found[-1].name!r} comes ',', not {self._peek()!r}; {_EXAMPLE}")
        names = [each.name for each in found]
        if len({each.lower() for each in names}) != len(names):
            raise InvalidConfig(f"the schema has two fields of one name: {', '.join(names)}")
        return Schema(tuple(found))

    def _field(self, depth: int) -> Field:
        name = _unquoted(self._next("a name"))
        self._take(":")
        kind = self._type(name, depth)
        nullable, default = True, MISSING
        while True:
            if self._take("not", "null"):
                nullable = False
            elif self._take("default"):
                default = _literal(self._next("a default"), name)
            elif self._take("comment"):
                self._next("a comment")
            else:
                return Field(name, kind, nullable, default)

    def _type(self, where: str, depth: int) -> Type:
        if depth > _MAX_DEPTH:
            raise InvalidConfig(f"the type of {where!r} is nested more than {_MAX_DEPTH} times")
        word = self._next(f"the type of {where!r}").lower()
        if word in ("decimal", "numeric"):
            return self._decimal(where)
        if word in ("array", "map", "struct"):
            self._expect("<", where)
            kind = self._parts(word, where, depth + 1)
            self._expect(">", where)
            return kind
        if word not in _TYPES:
            raise InvalidConfig(f"the type of {where!r} is unknown: {word!r}; use one of {', '.join(sorted(_TYPES))}")
        if word in ("varchar", "char") and self._take("("):
            self._next("a length")
            self._expect(")", where)
        return _TYPES[word]

    def _parts(self, word: str, where: str, depth: int) -> Type:
        if word == "struct":
            return self.fields(">", depth)
        if word == "array":
            return ListOf(self._type(where, depth))
        key = self._type(where, depth)
        if not isinstance(key, Scalar) or key.kind != "string":
            raise InvalidConfig(f"the keys of the map {where!r} must be STRING, as in JSON, not {key}")
        self._expect(",", where)
        return MapOf(self._type(where, depth))

    def _decimal(self, where: str) -> Scalar:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number(where)
            scale = self._number(where) if self._take(",") else 0
            self._expect(")", where)
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise InvalidConfig(f"the decimal {where!r} needs a precision from 1 to 38 and a scale up to it")
        return Scalar("decimal", precision, scale)

    def _number(self, where: str) -> int:
        token = self._next("a number")
        if not token.isdecimal() or len(token) > 4:
            raise InvalidConfig(f"the decimal {where!r} needs whole numbers, not {token!r}")
        return int(token)


def _unquoted(token: str) -> str:
    if token[0] in "`\"'" and len(token) > 1:
        return token[1:-1].replace(token[0] * 2, token[0])
    if not re.fullmatch(r"\w+", token):
        raise InvalidConfig(f"{token!r} is not a name; {_EXAMPLE}")
    return token


def _literal(token: str, where: str) -> Any:
    words: dict[str, Any] = {"null": None, "true": True, "false": False}
    if token.lower() in words:
        return words[token.lower()]
    if token[0] == "'":
        return _unquoted(token)
    try:
        return float(token) if "." in token else int(token)
    except ValueError as error:
        raise InvalidConfig(f"the default of {where!r} is not a literal: {token!r}") from error
