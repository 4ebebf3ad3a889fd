"""`LogFace`: what a partition offers to those who read it as a sequence, wherever it is stored.

`log[5]`, `log[-1]`, `log[a:b]`, `5 in log`, `len(log)`, `for record in log`, `log.typed(...)`, and how a notebook shows
it. `Log` has it, and a partition on object storage. All of it is made of `read`, `scan` and the offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeVar, overload

from ..batch.kernel import Record
from ..config import whole_number
from ..display import html_page, records_html, shown_soon
from ..errors import InvalidRecordType, RecordRemoved
from .read.last import Readable, to_show

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


if TYPE_CHECKING:
    from ..typed.log import TypedLog
    from ..typed.places import LogLike, Sink
    from ..typed.serializer import MetadataSerializer, RawHeaders, Serializer

    class _Below(LogLike, Readable, Protocol):
        """What it is made of."""

        @property
        def visible_offset(self) -> int: ...
        def _last(self) -> Record | None:
            """The last record, where the offset before the end has none."""

else:
    _Below = object


class LogFace(_Below):
    """A partition as a sequence of records."""

    def _repr_html_(self) -> str:
        """For notebooks: offsets, size and the last records. Returns soon, also if somebody holds a lock."""
        return shown_soon(self, lambda: html_page(repr(self), records_html(to_show(self))))

    def __len__(self) -> int:
        return self.visible_offset - self.lowest_offset

    def __bool__(self) -> bool:
        return True  # an empty log is still a log: `if log:` checks for None

    @overload
    def __getitem__(self, which: int) -> Record: ...

    @overload
    def __getitem__(self, which: slice) -> list[Record]: ...

    def __getitem__(self, which: int | slice) -> Record | list[Record]:
        """`log[offset]`; `log[-1]` is the last record, `log[-2]` the one at the offset 2 before the end; `log[a:b]` is
        a list of those with a <= offset < b."""
        if isinstance(which, slice):
            if which.step not in (None, 1):
                raise InvalidRecordType("a slice of a log cannot have a step")
            return list(self._slice(which.start, which.stop))
        which = whole_number(which)
        try:
            return self.read(which if which >= 0 else self.last_stable_offset + which)
        except RecordRemoved:
            if which == -1 and (found := self._last()) is not None:
                return found
            raise

    def _slice(self, start: int | None, stop: int | None) -> Iterator[Record]:
        lowest, end = self.lowest_offset, self.last_stable_offset
        start = lowest if start is None else start + end if start < 0 else start
        stop = end if stop is None else stop + end if stop < 0 else stop
        return self.scan(min(max(start, lowest), end), max(stop, 0))

    def __iter__(self) -> Iterator[Record]:
        return self.scan()

    def __contains__(self, offset: object) -> bool:
        """`5 in log`: whether there is a record at this offset."""
        if isinstance(offset, bool) or not isinstance(offset, SupportsIndex):
            raise InvalidRecordType(f"`in` expects an offset, not {type(offset).__name__}")
        try:
            self.read(index(offset))
        except LookupError:
            return False
        return True

    # --- as objects

    @overload
    def typed(self, value: Serializer[V], *, errors_to: Sink | None = None) -> TypedLog[V, bytes, RawHeaders]: ...

    @overload
    def typed(
        self, value: Serializer[V], *, metadata: MetadataSerializer[M], errors_to: Sink | None = None
    ) -> TypedLog[V, bytes, M]: ...

    @overload
    def typed(
        self, value: Serializer[V], key: Serializer[K], *, errors_to: Sink | None = None
    ) -> TypedLog[V, K, RawHeaders]: ...

    @overload
    def typed(
        self,
        value: Serializer[V],
        key: Serializer[K],
        *,
        metadata: MetadataSerializer[M],
        errors_to: Sink | None = None,
    ) -> TypedLog[V, K, M]: ...

    def typed(
        self,
        value: Serializer[Any],
        key: Serializer[Any] | None = None,
        *,
        metadata: MetadataSerializer[Any] | None = None,
        errors_to: Sink | None = None,
    ) -> TypedLog[Any, Any, Any]:
        """A view in which values, keys and metadata are objects: `log.typed(value=JSON(Order), key=Utf8())`.

        A record that does not parse raises `DecodeFailed`, which has the record; or it is copied to `errors_to`,
        another log or a topic, and skipped.
        """
        from ..typed.views import typed_log  # not before: most programs have no typed views

        return typed_log(self, value, key, metadata, errors_to)
