"""The owner of a certificate as text, as Kafka names it: `CN=ann,OU=billing,O=example` (RFC 2253).

```
Certificate     SEQUENCE { tbs SEQUENCE { [0] version?, serial, algorithm, issuer, validity, subject, ... }, ... }
subject         SEQUENCE of SET of SEQUENCE { type OID, value string }
```

The last part comes first. Types that RFC 2253 has no word for are written as numbers, with their values in hexadecimal,
as Java does it. Only certificates that TLS has verified come here; what cannot be parsed is an error nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...errors import AuthenticationFailed

_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_WORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
#: The types of strings, and how their bytes are read.
_ENCODINGS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
#: Tag, content, and all of its bytes.
_Element = tuple[int, memoryview, memoryview]


def name_of(certificate: bytes) -> str:
    """The subject of a certificate in DER."""
    try:
        [(_, whole, _)] = _elements(memoryview(certificate))
        (_, signed, _) = next(_elements(whole))
        fields = [each for each in _elements(signed) if each[0] != _VERSION]
        subject = fields[4]
        if subject[0] != _SEQUENCE:
            raise ValueError("the subject is not a sequence")
        parts = [
            "+".join(_part(pair) for _, pair, _ in _elements(group))
            for tag, group, _ in _elements(subject[1])
            if _is(tag, _SET)
        ]
    except (ValueError, IndexError, StopIteration) as error:
        raise AuthenticationFailed(f"the certificate of the client cannot be parsed: {error}") from error
    return ",".join(reversed(parts))


def _part(pair: memoryview) -> str:
    """`CN=ann`."""
    (kind, number, _), (tag, value, whole) = _elements(pair)
    _is(kind, _OID)
    name = _oid(number)
    word, encoding = _WORDS.get(name), _ENCODINGS.get(tag)
    if word is None or encoding is None:
        return f"{word or name}=#{whole.hex()}"
    return f"{word}={_escaped(str(value, encoding))}"


def _escaped(text: str) -> str:
    made = "".join(f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text)
    inner = made.strip(" ")
    if not inner:
        return "\\ " * len(made)
    before, after = len(made) - len(made.lstrip(" ")), len(made) - len(made.rstrip(" "))
    return "\\ " * before + inner + "\\ " * after


def _elements(data: memoryview) -> Iterator[_Element]:
    """The elements that lie one after the other."""
    position = 0
    while position < len(data):
        tag, length, start = data[position], data[position + 1], position + 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("a length of an unknown form")
            length = int.from_bytes(data[start : start + count])
            start += count
        end = start + length
        if end > len(data):
            raise ValueError("an element ends after the certificate")
        yield tag, data[start:end], data[position:end]
        position = end


def _is(tag: int, wanted: int) -> bool:
    if tag != wanted:
        raise ValueError(f"an element of type {tag:#x} instead of {wanted:#x}")
    return True


def _oid(data: memoryview) -> str:
    numbers, number = list[int](), 0
    for each in data:
        number = number << 7 | each & 0x7F
        if not each & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))
