"""Kafka's wire protocol, sans-io: bytes to dicts and back, for a server and for a client.

```python
from sawlog.broker import wire

header = wire.parse_header(frame)                       # a request without its length
body = wire.decode_request(header, frame)               # {"topics": [{"name": "orders", ...}], ...}
buffers = wire.encode_response(header, {"topics": [...]})    # length, header and body, ready to be sent

buffers = wire.encode_request(wire.Key.METADATA, 9, correlation_id=7, client_id="me", body={"topics": None})
correlation_id, body = wire.decode_response(wire.Key.METADATA, 9, frame)
```

Messages are described by data: `messages` has the fields of each request and response, in the notation of `schema`.
`codec` compiles a table and a version into functions, and `frames` adds length and header.

Values are plain dicts: Kafka's field names in snake_case, lists for arrays, 16 bytes for a uuid. `records` stay views
of the received frame and are sent without a copy. A decoded dict has every field of every version; a field that the
version on the wire lacks has its default. A dict to encode may omit fields with their default; fields that the version
lacks are not written; a key that no version knows is an error.

Invalid bytes raise `Malformed`, in time and memory bounded by their size. The only state are the compiled functions:
everything is thread-safe.
"""

from __future__ import annotations

from ...errors import Malformed, Unencodable, UnsupportedVersion, WireError
from .errors import ErrorCode, Key
from .frames import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_header,
)
from .messages import BY_KEY
from .schema import Api

__all__ = [
    "BY_KEY",
    "Api",
    "ErrorCode",
    "Key",
    "Malformed",
    "RequestHeader",
    "Unencodable",
    "UnsupportedVersion",
    "WireError",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "parse_header",
]
