"""Detects which system a directory belongs to.

Each format looks for what it would have written: file names first, then the first bytes of the files, which must agree
with the names. A format that finds something that only it writes (a matching checksum, a magic number) is certain;
uncertain candidates are then ignored. If several candidates are left, `UnknownFormat` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from os import PathLike

from ..errors import InvalidConfig, UnknownFormat
from ..storage import Directory, FileDirectory
from .foreign import Damage, DecodingFormat, Detection, ForeignLog, Format, Place

#: Returns the offset in the metadata of a record, or None if it has none.
Decoder = Callable[[bytes], int | None]

#: The modules of this package that provide a format, each as its `FORMAT`.
_MODULES = ("kafka", "laminarmq", "rustlog", "gumlog", "plain")
#: Marks a directory that needs no import.
_OURS = "sawlog.json"


def formats() -> tuple[Format, ...]:
    """All formats that can be read and written, in the order in which they are tried."""
    return tuple(import_module(f".{name}", __package__).FORMAT for name in _MODULES)


def format_named(name: str) -> Format:
    """The format of that name; `InvalidConfig` if it does not exist."""
    for each in formats():
        if each.name == name:
            return each
    raise InvalidConfig(f"unknown format {name!r}; use one of {', '.join(each.name for each in formats())}")


def detect(path: str | PathLike[str] | Directory, *, format: str | None = None) -> Detection | None:
    """What a directory holds: one log, a topic or a server's data; None if no supported system wrote it.

    With `format` only that format is tried. `UnknownFormat` if several formats are possible.
    """
    chosen = formats() if format is None else (format_named(format),)
    if not isinstance(path, (str, PathLike)):
        return _detect(path, chosen)
    directory = FileDirectory(path, create=False)
    try:
        return _detect(directory, chosen)
    finally:
        directory.close()


def _detect(directory: Directory, chosen: tuple[Format, ...]) -> Detection | None:
    if directory.exists(_OURS):
        raise UnknownFormat(f"{directory.path} is a sawlog store: open it with sawlog.open")
    found = [seen for each in chosen if (seen := each.detect(directory)) is not None]
    certain = [seen for seen in found if seen.certain]
    candidates = certain or found
    if len(candidates) > 1:
        names = " or ".join(seen.format for seen in candidates)
        raise UnknownFormat(f"{directory.path} may be {names}: give the format")
    return candidates[0] if candidates else None


def required_detection(path: str | PathLike[str] | Directory, format: str | None) -> Detection:
    """As `detect`, but raises an error that says what was looked for if nothing is found."""
    found = detect(path, format=format)
    if found is None:
        where = path if isinstance(path, (str, PathLike)) else path.path
        tried = format or ", ".join(each.name for each in formats())
        raise UnknownFormat(f"{where} holds no log of a supported system (looked for: {tried})")
    return found


def detected_or_named(path: str | PathLike[str], format: str | None) -> Detection:
    """As `required_detection`; but if the caller names a format and nothing fits, the path is treated as one log of
    it."""
    if format is None:
        return required_detection(path, None)
    found = detect(path, format=format)
    return found or Detection(format, "partition", str(path), (Place(str(path)),), "named by the caller", False)


def open_place(
    place: Place, format: str, *, damage: Damage = "stop", strict: bool = False, metadata: Decoder | None = None
) -> ForeignLog:
    directory = FileDirectory(place.path, create=False)
    try:
        return _open(directory, format, damage, strict, metadata)
    except BaseException:
        directory.close()
        raise


def _open(directory: Directory, format: str, damage: Damage, strict: bool, metadata: Decoder | None) -> ForeignLog:
    chosen = format_named(format)
    if metadata is None:
        return chosen.open(directory, damage=damage, strict=strict)
    if not isinstance(chosen, DecodingFormat):
        raise InvalidConfig(f"records of {format} have no metadata to decode: omit `metadata`")
    return chosen.open_decoding(directory, metadata, damage=damage, strict=strict)


def open_log(
    path: str | PathLike[str] | Directory,
    *,
    format: str | None = None,
    damage: Damage = "stop",
    strict: bool = False,
    metadata: Decoder | None = None,
) -> ForeignLog:
    """Open the log in a directory, read only: `sawlog.interop.open`.

    Without `format` the format is detected. Where records cannot be read, a scan raises, or, with `damage="skip"`,
    continues after them. With `strict` every finding raises the error of its kind. `metadata` is for laminarmq with
    metadata other than `()`: it gets the bytes of a record's metadata and returns the index in it, returns None if
    there is none, or raises `ValueError`.
    """
    if format is None:
        found = required_detection(path, None)
        if len(found.places) != 1:
            some = ", ".join(place.path for place in found.places[:3])
            raise UnknownFormat(
                f"{found.path} holds {len(found.places)} logs of {found.format}: open one of {some}, ..."
            )
        format = found.format
        if isinstance(path, (str, PathLike)):
            path = found.places[0].path
    if isinstance(path, (str, PathLike)):  # the caller may know the format better than the first bytes show
        return open_place(Place(str(path)), format, damage=damage, strict=strict, metadata=metadata)
    return _open(path, format, damage, strict, metadata)
