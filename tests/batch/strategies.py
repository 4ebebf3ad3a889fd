"""Records as hypothesis draws them: nulls, nothing, lengths at which a varint grows, times in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from sawlog.batch.kernel import MAX_TIMESTAMP


def share(part: float) -> settings:
    """Reduce the number of examples of the profile, for slow tests and for tests that others back up."""
    return settings(max_examples=max(5, round(settings.default.max_examples * part)))


#: A zig-zag varint grows by a byte at 64, at 8192 and at 2^20.
EDGES = [0, 1, 63, 64, 65, 8191, 8192]

small = st.binary(max_size=20)
edged = st.builds(lambda size, byte: bytes([byte]) * size, st.sampled_from(EDGES), st.integers(0, 255))
payloads = st.none() | small | edged
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_001_000),
    st.integers(0, MAX_TIMESTAMP),
    st.sampled_from([0, MAX_TIMESTAMP]),
)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | small), max_size=4).map(tuple)

#: The arguments of `encode` and `Encoder.many`: (value, key, headers, timestamp).
records = st.tuples(payloads, payloads, headers, timestamps)
record_lists = st.lists(records, min_size=1, max_size=12)
