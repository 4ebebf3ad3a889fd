"""Two numbers that one process publishes to others: the end of a log, at every append."""

from sawlog.batch.cyshim import cython

if not cython.compiled:
    from .keys import sip_round
    from .primitives import get64, put64


#: Two slots of 32 bytes: sequence, first number, second number, check; each 8 bytes, big endian.
SLOTS_BYTES = 64


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def slot_check(
    secret: cython.ulonglong, sequence: cython.ulonglong, first: cython.ulonglong, second: cython.ulonglong
) -> cython.ulonglong:
    for _ in range(4):
        secret, sequence, first, second = sip_round(secret, sequence, first, second)
    return secret ^ sequence ^ first ^ second


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def unsigned64(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.ulonglong:
    if cython.compiled:
        return cython.cast(cython.ulonglong, get64(b, p))
    return get64(b, p) & 0xFFFFFFFFFFFFFFFF


@cython.final
@cython.cclass
class Slots:
    """Two numbers from 0 on in a buffer that several processes share, without a lock.

    The writer fills the slot with the lower sequence and writes its check last, so the other slot is always complete,
    even if the writer is killed between two bytes. A check made with another secret is wrong.
    """

    view: cython.const[cython.uchar][::1]
    room: cython.uchar[::1]
    secret: cython.ulonglong
    #: A word that is not 0 if a process sleeps until something is stored, and the call that wakes it; None: no such.
    followed: cython.const[cython.uint][::1]
    ring: object

    def __init__(self, buffer, secret, writable):
        if len(buffer) != SLOTS_BYTES:
            raise ValueError("the buffer of two slots has 64 bytes")
        self.followed = None
        self.ring = None
        self.view = buffer
        self.room = buffer if writable else None
        self.secret = secret

    def ring_if(self, followed, ring):
        """Call `ring` after each store that finds a number other than 0 in the first word of `followed`."""
        self.followed = followed
        self.ring = ring

    @cython.cfunc
    @cython.exceptval(check=False)
    def _sequence(self, p: cython.Py_ssize_t) -> cython.ulonglong:
        """Return the sequence of a slot; 0 if the slot is incomplete."""
        found: cython.ulonglong = unsigned64(self.view, p)
        check: cython.ulonglong = slot_check(
            self.secret, found, unsigned64(self.view, p + 8), unsigned64(self.view, p + 16)
        )
        return found if check == unsigned64(self.view, p + 24) else 0

    def load(self):
        """Return both numbers; None if none were stored with this secret, or a writer is storing them."""
        p: cython.Py_ssize_t = 0
        first: cython.longlong
        second: cython.longlong
        one: cython.ulonglong = self._sequence(0)
        two: cython.ulonglong = self._sequence(32)
        wanted: cython.ulonglong = one
        if two > one:
            wanted = two
            p = 32
        if wanted == 0:
            return None
        first = get64(self.view, p + 8)
        second = get64(self.view, p + 16)
        if self._sequence(p) != wanted:  # overwritten meanwhile
            return None
        return first, second

    def repeat(self):
        """Copy the numbers to the other slot, so that damage to one of the two is harmless."""
        found = self.load()
        one: cython.ulonglong = self._sequence(0)
        two: cython.ulonglong = self._sequence(32)
        if found is None or (
            one > 0
            and two > 0
            and get64(self.view, 8) == get64(self.view, 40)
            and get64(self.view, 16) == get64(self.view, 48)
        ):
            return
        self._store(found[0], found[1], one, two)

    def store(self, first: cython.longlong, second: cython.longlong):
        """Replace both numbers atomically."""
        self.put(first, second)

    @cython.cfunc
    def put(self, first: cython.longlong, second: cython.longlong) -> object:
        """As `store`, for a call from the kernel."""
        one: cython.ulonglong = self._sequence(0)
        two: cython.ulonglong = self._sequence(32)
        now: cython.Py_ssize_t = 32 if two > one else 0
        if (one > 0 or two > 0) and get64(self.view, now + 8) == first and get64(self.view, now + 16) == second:
            return None
        self._store(first, second, one, two)

    @cython.cfunc
    def _store(
        self, first: cython.longlong, second: cython.longlong, one: cython.ulonglong, two: cython.ulonglong
    ) -> object:
        """Store into the older slot; `one` and `two` are the sequences of both."""
        sequence: cython.ulonglong = (one if one > two else two) + 1
        p: cython.Py_ssize_t = 0 if two > one else 32
        check: cython.ulonglong
        if self.room is None:
            raise ValueError("these slots are only read")
        check = slot_check(
            self.secret, sequence, cython.cast(cython.ulonglong, first), cython.cast(cython.ulonglong, second)
        )
        put64(self.room, p, sequence)
        put64(self.room, p + 8, first)
        put64(self.room, p + 16, second)
        put64(self.room, p + 24, check)
        if self.ring is not None and self.followed[0] != 0:
            self.ring()
