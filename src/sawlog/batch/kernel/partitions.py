"""The partition of a key, by the hash that Kafka's own client uses: for one key, for a column, or for a writer."""

from sawlog.batch.cyshim import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
else:
    from .builder import BatchBuilder, now_ms
    from .primitives import bit


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def times32(x: cython.ulonglong, y: cython.ulonglong) -> cython.ulonglong:
    """Multiply modulo 2**32; both factors are smaller than that."""
    if cython.compiled:
        return cython.cast(cython.ulonglong, cython.cast(cython.uint, x * y))
    return (x * y) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def murmur(b: cython.pointer(cython.const[cython.uchar]), n: cython.Py_ssize_t) -> cython.ulonglong:
    """Compute MurmurHash2 with Kafka's seed, as 32 unsigned bits. Interpreted, `b` is bytes."""
    m: cython.ulonglong = 0x5BD1E995
    h: cython.ulonglong = 0x1747B28C
    k: cython.ulonglong
    p: cython.Py_ssize_t = 0
    h = (h | (cython.cast(cython.ulonglong, 1) << 31)) ^ cython.cast(cython.ulonglong, n)  # the seed is 0x9747B28C
    while n - p >= 4:
        k = b[p]
        k = k | (cython.cast(cython.ulonglong, b[p + 1]) << 8)
        k = k | (cython.cast(cython.ulonglong, b[p + 2]) << 16)
        k = k | (cython.cast(cython.ulonglong, b[p + 3]) << 24)
        k = times32(k, m)
        k = k ^ (k >> 24)
        h = times32(h, m) ^ times32(k, m)
        p += 4
    if n - p >= 3:
        h = h ^ (cython.cast(cython.ulonglong, b[p + 2]) << 16)
    if n - p >= 2:
        h = h ^ (cython.cast(cython.ulonglong, b[p + 1]) << 8)
    if n - p >= 1:
        h = times32(h ^ b[p], m)
    h = times32(h ^ (h >> 13), m)
    return h ^ (h >> 15)


@cython.cfunc
@cython.inline
def murmur_of(key: object) -> cython.longlong:
    """Hash a key that is exactly bytes."""
    if cython.compiled:
        return cython.cast(
            cython.longlong,
            murmur(
                cython.cast(cython.pointer(cython.const[cython.uchar]), PyBytes_AS_STRING(key)), PyBytes_GET_SIZE(key)
            ),
        )
    return murmur(key, len(key))


def murmur2(key):
    """Hash a key as Kafka's own client does, to a signed 32-bit integer."""
    h: cython.longlong = murmur_of(key if type(key) is bytes else bytes(memoryview(key)))
    return h - 4294967296 if h >= 2147483648 else h


def partition_of(key, partitions):
    """Return the partition to which Kafka's own client sends a key."""
    most: cython.longlong = partitions
    if most < 1:
        raise ValueError("a topic has at least one partition")
    return (murmur_of(key if type(key) is bytes else bytes(memoryview(key))) & 0x7FFFFFFF) % most


def partitions_of(
    offsets: cython.const[cython.longlong][::1],
    data: cython.const[cython.uchar][::1],
    valid: cython.const[cython.uchar][::1],
    first_bit: cython.Py_ssize_t,
    partitions: cython.longlong,
    without_key: cython.int,
    found: cython.int[::1],
):
    """Compute the partition of every key of an Arrow column (64-bit offsets); `without_key` for null keys."""
    i: cython.Py_ssize_t
    h: cython.longlong
    rows: cython.Py_ssize_t = found.shape[0]
    has_nulls: cython.bint = valid.shape[0] > 0
    if partitions < 1 or offsets.shape[0] < rows + 1 or first_bit < 0:
        raise ValueError("the keys would go outside a buffer that is too small")
    if has_nulls and (first_bit + rows + 7) >> 3 > valid.shape[0]:
        raise ValueError("the keys would go outside a buffer that is too small")
    for i in range(rows):
        if offsets[i] < 0 or offsets[i + 1] < offsets[i] or offsets[i + 1] > data.shape[0]:
            raise ValueError("the keys would go outside a buffer that is too small")
    with cython.nogil:
        for i in range(rows):
            if has_nulls and not bit(valid, first_bit + i):
                found[i] = without_key
                continue
            if cython.compiled:
                h = cython.cast(
                    cython.longlong,
                    murmur(
                        cython.address(data[offsets[i]]) if offsets[i + 1] > offsets[i] else cython.NULL,
                        cython.cast(cython.Py_ssize_t, offsets[i + 1] - offsets[i]),
                    ),
                )
            else:
                h = murmur(bytes(data[offsets[i] : offsets[i + 1]]), offsets[i + 1] - offsets[i])
            found[i] = cython.cast(cython.int, (h & 0x7FFFFFFF) % partitions)


@cython.final
@cython.cclass
class Dispatcher:
    """Passes each record to the builder of its partition: by its key, as Kafka's client does. Records without a key go
    to one partition until it has received `sticky_bytes` of values; then `choose()` returns the next one.

    `builders` is a list with a `BatchBuilder` for each partition.
    """

    builders: list
    partitions: cython.longlong
    sticky: cython.Py_ssize_t
    used: cython.longlong
    sticky_bytes: cython.longlong
    choose: object
    keyed: cython.bint

    def __init__(self, builders, sticky_bytes, choose, keyed=False):
        self.builders = list(builders)
        for builder in self.builders:
            if not isinstance(builder, BatchBuilder):
                raise TypeError("builders are BatchBuilders")
        self.partitions = len(self.builders)
        if self.partitions < 1:
            raise ValueError("a topic has at least one partition")
        self.sticky_bytes = sticky_bytes
        self.choose = choose
        self.keyed = keyed
        self.used = 0
        self.sticky = 0
        self._next()

    @cython.cfunc
    def _next(self) -> object:
        chosen: cython.Py_ssize_t = self.choose()
        if not 0 <= chosen < self.partitions:
            raise ValueError("there is no such partition")
        self.sticky = chosen
        self.used = 0
        return None

    def add(self, value, key=None, headers=(), timestamp=None):
        """Encode one record into the batch of its partition."""
        at: cython.Py_ssize_t
        builder: BatchBuilder
        if key is None:
            at = self.sticky
            builder = self.builders[at]
            if self.keyed:
                raise builder.refuse("keyless", "key", None)
            builder.add(value, key, headers, timestamp)
            self.used += 1 if value is None else len(value)
            if self.used >= self.sticky_bytes:
                self._next()
            return
        if type(key) is not bytes:
            builder = self.builders[0]
            key = builder._bytes(key, "key")
        at = cython.cast(cython.Py_ssize_t, (murmur_of(key) & 0x7FFFFFFF) % self.partitions)
        builder = cython.cast(BatchBuilder, self.builders[at])
        builder._add(value, key, headers, now_ms() if timestamp is None else builder._check_timestamp(timestamp))
        if builder.limit > 0 and builder.position >= builder.limit and builder.on_full is not None:
            builder.on_full()
