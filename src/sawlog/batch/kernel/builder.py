"""Objects to batch: `BatchBuilder` encodes records into a buffer, and finishes the batch that they make."""

import time

from sawlog.batch.cyshim import cython
from sawlog.errors import StreamAborted

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
    from cython.cimports.libc.string import memcpy
    from cython.cimports.posix.time import CLOCK_REALTIME, clock_gettime, timespec
else:
    from .batches import write_header
    from .declarations import HEADER_BYTES
    from .primitives import crc32c_of, put32, put_varint, varint_size
    from .records import Record


@cython.cfunc
def now_ms() -> cython.longlong:
    if cython.compiled:
        t: timespec
        clock_gettime(CLOCK_REALTIME, cython.address(t))
        return cython.cast(cython.longlong, t.tv_sec) * 1000 + t.tv_nsec // 1000000
    return time.time_ns() // 1000000


@cython.final
@cython.freelist(64)
@cython.cclass
class Encoded:
    """A finished batch without offsets."""

    data = cython.declare(object, visibility="readonly")
    count = cython.declare(cython.longlong, visibility="readonly")
    base_timestamp = cython.declare(cython.longlong, visibility="readonly")
    max_timestamp = cython.declare(cython.longlong, visibility="readonly")

    def __init__(self, data, count, base_timestamp, max_timestamp):
        self.data = data
        self.count = count
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp


#: Size of the buffer that replaces one that has grown too large.
_LEAST_KEPT = 65536
#: Up to this size the kernel's own CRC is faster than a call.
SMALL_CRC_BYTES = 8192


@cython.final
@cython.cclass
class BatchBuilder:
    """Encodes records one after the other into one growing buffer, after space for a header.

    `add` rejects invalid input with an error from `refuse` and leaves the batch unchanged. When the encoded bytes reach
    `limit` after an `add`, it calls `on_full()`, which is expected to `take` the batch.
    """

    buffer = cython.declare(object, visibility="readonly")
    view: cython.uchar[::1]
    capacity: cython.Py_ssize_t
    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    base_timestamp = cython.declare(cython.longlong, visibility="readonly")
    max_timestamp = cython.declare(cython.longlong, visibility="readonly")
    closed: cython.bint
    limit: cython.Py_ssize_t
    max_record: cython.longlong
    max_total: cython.Py_ssize_t
    on_full: object
    refuse: object
    taken = cython.declare(object, visibility="public")

    def __init__(self, refuse, limit=0, on_full=None, max_record=0, max_total=2147483647, capacity=4096):
        self.refuse = refuse
        self.taken = None
        self.closed = False
        self.limit = limit
        self.on_full = on_full
        self.max_record = max_record
        self.max_total = max_total
        self.capacity = capacity if capacity > HEADER_BYTES else HEADER_BYTES
        self.buffer = bytearray(self.capacity)
        self.view = self.buffer
        self.reset_fields()

    def reset(self, most: cython.Py_ssize_t = 2147483647):
        """Discard all records; keep the buffer unless it is larger than `most`."""
        if self.capacity > most:
            self.buffer = bytearray(_LEAST_KEPT)
            self.view = self.buffer
            self.capacity = _LEAST_KEPT
        self.reset_fields()

    def take(self, buffer, close=False):
        """Continue with an empty batch in another buffer, and return the previous one: (buffer, end of its records,
        their number, first timestamp, largest timestamp). Atomic: no record of another thread is lost in between, and
        the result is also in `taken`, for a caller that is interrupted before it gets it. With `close`, later records
        are rejected.
        """
        if len(buffer) < HEADER_BYTES:
            raise ValueError("a batch needs a buffer of 61 bytes or more")
        view: cython.uchar[::1] = buffer
        ending: cython.bint = close
        old: object = self.buffer
        position: cython.Py_ssize_t = self.position
        count: cython.Py_ssize_t = self.count
        base: cython.longlong = self.base_timestamp
        top: cython.longlong = self.max_timestamp
        self.buffer = buffer
        self.view = view
        self.capacity = view.shape[0] if cython.compiled else len(buffer)
        self.reset_fields()
        self.closed = self.closed or ending
        self.taken = (old, position, count, base, top)
        return self.taken

    @cython.cfunc
    def reset_fields(self) -> cython.void:
        self.position = HEADER_BYTES
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    @cython.cfunc
    def _grow(self, need: cython.Py_ssize_t) -> object:
        """Move to a new, larger buffer: a caller may still hold a view of the old one, which prevents resizing."""
        wanted: cython.Py_ssize_t = self.position + need
        if wanted < self.capacity * 2:
            wanted = self.capacity * 2
        grown: object = bytearray(wanted)
        view: cython.uchar[::1] = grown
        if self.position > wanted:  # another thread added a record meanwhile: check again
            return None
        if cython.compiled:
            memcpy(cython.address(view[0]), cython.address(self.view[0]), self.position)
        else:
            view[: self.position] = self.view[: self.position]
        self.buffer = grown
        self.view = view
        self.capacity = wanted
        return None

    @cython.cfunc
    def _bytes(self, what: object, name: object) -> object:
        """Convert a value that is not exactly bytes: the slow path."""
        if what is None or type(what) is bytes:
            return what
        if isinstance(what, (bytes, bytearray, memoryview)):
            try:
                # Exactly bytes from here on: a subclass may lie about its length.
                return bytes(memoryview(what))
            except ValueError:  # a released memoryview
                pass
        raise self.refuse("type", name, what)

    @cython.cfunc
    def _check_timestamp(self, timestamp: object) -> cython.longlong:
        if isinstance(timestamp, bool) or not isinstance(timestamp, int):
            raise self.refuse("timestamp_type", "timestamp", timestamp)
        if not 0 <= timestamp <= 9223372036854775:
            raise self.refuse("timestamp", "timestamp", timestamp)
        return timestamp

    @cython.cfunc
    def _encode_headers(self, headers: object) -> object:
        """Check the headers and return them as (key bytes, value bytes or None)."""
        pairs: list = []
        if isinstance(headers, dict):
            headers = headers.items()
        try:
            for name, value in headers:
                if not isinstance(name, str):
                    raise self.refuse("header_key", "header key", name)
                try:
                    encoded = str.encode(name, "utf-8", "surrogateescape")
                except UnicodeEncodeError:
                    raise self.refuse("header_key", "header key", name) from None
                pairs.append((encoded, self._bytes(value, "header value")))
        except (TypeError, ValueError) as error:
            if type(error) is TypeError or type(error) is ValueError:
                raise self.refuse("headers", "headers", headers) from None
            raise
        return pairs

    @cython.cfunc
    def _add(self, value: object, key: object, headers: object, timestamp: cython.longlong) -> object:
        klen: cython.Py_ssize_t = -1
        vlen: cython.Py_ssize_t = -1
        hlen: cython.Py_ssize_t
        p: cython.Py_ssize_t
        body: cython.longlong
        payload: cython.longlong = 0
        header_bytes: cython.longlong = 0
        need: cython.longlong
        before: cython.Py_ssize_t
        i: cython.Py_ssize_t
        nheaders: cython.Py_ssize_t = 0
        delta: cython.longlong
        pairs: object = None
        # Run the caller's code first: it may be slow, raise, or even call this method.
        if headers is not None and not (type(headers) is tuple and len(headers) == 0):
            pairs = self._encode_headers(headers)
            nheaders = len(pairs)
        if type(value) is not bytes:
            value = self._bytes(value, "value")
        if type(key) is not bytes:
            key = self._bytes(key, "key")
        if value is not None:
            vlen = PyBytes_GET_SIZE(value) if cython.compiled else len(value)
            payload += vlen
        if key is not None:
            klen = PyBytes_GET_SIZE(key) if cython.compiled else len(key)
            payload += klen
        for i in range(nheaders):
            name, content = pairs[i]
            hlen = len(name)
            header_bytes += varint_size(hlen) + hlen
            payload += hlen
            hlen = -1 if content is None else len(content)
            header_bytes += varint_size(hlen) + (0 if hlen < 0 else hlen)
            payload += 0 if hlen < 0 else hlen
        if self.max_record > 0 and payload > self.max_record:
            raise self.refuse("too_large", payload, self.max_record)
        # No Python code runs from here on except in `_grow`, so records of several threads do not mix.
        while True:
            if self.closed:
                raise self.refuse("closed", "writer", None)
            delta = timestamp - self.base_timestamp if self.count > 0 else 0
            body = 1 + varint_size(delta) + varint_size(self.count) + varint_size(klen) + varint_size(vlen)
            body += varint_size(nheaders) + header_bytes
            if klen > 0:
                body += klen
            if vlen > 0:
                body += vlen
            need = varint_size(body) + body
            if self.position + need > self.max_total:
                before = self.count
                if before > 0 and self.on_full is not None:
                    self.on_full()
                    if self.count < before:
                        continue
                raise self.refuse("batch_too_large", self.position + need, self.max_total)
            if self.capacity - self.position >= need:
                break
            self._grow(need)
        view = self.view
        p = put_varint(view, self.position, body)
        view[p] = 0
        p = put_varint(view, p + 1, delta)
        p = put_varint(view, p, self.count)
        p = put_varint(view, p, klen)
        if klen > 0:
            if cython.compiled:
                memcpy(cython.address(view[p]), PyBytes_AS_STRING(key), klen)
            else:
                view[p : p + klen] = key
            p += klen
        p = put_varint(view, p, vlen)
        if vlen > 0:
            if cython.compiled:
                memcpy(cython.address(view[p]), PyBytes_AS_STRING(value), vlen)
            else:
                view[p : p + vlen] = value
            p += vlen
        p = put_varint(view, p, nheaders)
        if nheaders > 0:
            p = self._put_headers(pairs, p)
        if self.count == 0:
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        self.position = p
        return None

    @cython.cfunc
    def _put_headers(self, pairs: object, p: cython.Py_ssize_t) -> cython.Py_ssize_t:
        for name, content in pairs:
            p = self._put_bytes(name, p)
            p = self._put_bytes(content, p)
        return p

    @cython.cfunc
    def _put_bytes(self, what: object, p: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write a length and that many bytes; `what` is exactly bytes, or None."""
        n: cython.Py_ssize_t = -1
        if what is not None:
            n = PyBytes_GET_SIZE(what) if cython.compiled else len(what)
        p = put_varint(self.view, p, n)
        if n > 0:
            if cython.compiled:
                memcpy(cython.address(self.view[p]), PyBytes_AS_STRING(what), n)
            else:
                self.view[p : p + n] = what
            p += n
        return p

    def add(self, value, key=None, headers=(), timestamp=None):
        """Encode one record; without a timestamp it gets the current time."""
        self._add(value, key, headers, now_ms() if timestamp is None else self._check_timestamp(timestamp))
        if self.limit > 0 and self.position >= self.limit and self.on_full is not None:
            self.on_full()

    def finish(self, attributes, max_timestamp, producer_id, producer_epoch, sequence, crc):
        """Return the batch of all records so far, uncompressed, with its header. `crc` computes the checksum of a large
        batch. A `max_timestamp` of -1 stands for that of the records. Valid until the builder is used again."""
        end: cython.Py_ssize_t = self.position
        top: cython.longlong = self.max_timestamp if max_timestamp < 0 else max_timestamp
        data: object = memoryview(self.buffer)[:end]
        self.seal(attributes, top, producer_id, producer_epoch, sequence)
        if end > SMALL_CRC_BYTES:
            put32(self.view, 17, crc(data[21:]))
        return Encoded(data, self.count, self.base_timestamp, top)

    @cython.cfunc
    def seal(
        self,
        attributes: cython.int,
        max_timestamp: cython.longlong,
        producer_id: cython.longlong,
        producer_epoch: cython.int,
        sequence: cython.longlong,
    ) -> object:
        """Write the header, and the CRC of a batch of at most `SMALL_CRC_BYTES`."""
        end: cython.Py_ssize_t = self.position
        write_header(
            self.view if cython.compiled else memoryview(self.buffer),
            0,
            0,
            end,
            0,
            attributes,
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp if max_timestamp < 0 else max_timestamp,
            producer_id,
            producer_epoch,
            sequence,
            self.count,
        )
        if end <= SMALL_CRC_BYTES:
            put32(self.view, 17, crc32c_of(self.view, 21, end))
        return None

    def extend(self, records):
        """Encode many records: bytes, `Record`s, dicts, or tuples in the order of `add`'s parameters."""
        now: cython.longlong = now_ms()
        time: cython.longlong
        n: cython.Py_ssize_t
        fields: tuple
        for item in records:
            if type(item) is bytes:
                self._add(item, None, None, now)
            elif type(item) is tuple and 1 <= len(item) <= 4:
                fields = item
                n = len(fields)
                time = now
                if n > 3 and fields[3] is not None:
                    time = self._check_timestamp(fields[3])
                self._add(fields[0], fields[1] if n > 1 else None, fields[2] if n > 2 else None, time)
            elif isinstance(item, Record):
                time = now if item.timestamp < 0 else self._check_timestamp(item.timestamp)
                self._add(item.value, item.key, item.headers, time)
            elif isinstance(item, dict):
                unknown = item.keys() - _FIELDS
                if unknown:
                    raise self.refuse("fields", "record", unknown)
                given = item.get("timestamp")
                time = now if given is None else self._check_timestamp(given)
                self._add(item.get("value"), item.get("key"), item.get("headers"), time)
            elif item is None or isinstance(item, (bytes, bytearray, memoryview)):
                self._add(item, None, None, now)
            else:
                raise self.refuse("type", "record", item)


_FIELDS = frozenset(("value", "key", "headers", "timestamp"))


@cython.ccall
def gather_chunks(source: object, most: cython.Py_ssize_t) -> tuple:
    """Take chunks from an iterator until they add up to `most` bytes: (list of chunks, None, True if the iterator has
    ended). A last chunk that is not bytes, or has `most` bytes by itself, replaces the None, as a tuple. Raises
    `StreamAborted` if the iterator raises."""
    held: list = []
    total: cython.Py_ssize_t = 0
    try:
        for chunk in source:
            if type(chunk) is not bytes or len(chunk) >= most:
                return held, (chunk,), False
            held.append(chunk)
            total += len(cython.cast(bytes, chunk))
            if total >= most:
                return held, None, False
    except Exception as error:
        raise StreamAborted(f"the stream raised {type(error).__name__}: {error}; nothing was stored") from error
    return held, None, True
