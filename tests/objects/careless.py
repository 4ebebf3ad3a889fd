"""A server that looks like S3 and breaks one of its promises. A self-test must refuse it.

Everything is in memory, and every fault is a switch. Servers known to have a fault are in brackets.

    no_preconditions   If-None-Match is ignored                        [rclone serve s3, s3rver, pys3local]
    racy_preconditions If-None-Match is checked before the object is
                       stored, not atomically                          [versitygw before 1.8]
    unsupported        501 for conditional writes                      [Backblaze B2]
    stale_lists        a listing is a moment old                       [S3 before 2020]
    stale_reads        so is a read, even of a missing object          [S3 before 2020, caches in front of others]
    short_lists        a listing ends after its first page
    no_ranges          every range request returns the whole object
    wrong_ranges       the range is one byte off                       [s3rver: suffixes]
    changed_content    line ends are changed on the way
    undead             a deleted object can still be read
    late_overwrites    a refused create is applied a moment later
    forbidden          403 for everything
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from .servers import BUCKET, Server

#: S3 has 1,000.
_PAGE = 100
#: Lag of a stale server, in changes.
_BEHIND = 3
_LATE_S = 0.2
_WHEN = "2026-01-01T00:00:00.000Z"


@dataclass
class Careless:
    """The objects of a server, and its faults."""

    faults: frozenset[str]
    objects: dict[str, bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: The objects after each of the last changes.
    past: list[dict[str, bytes]] = field(default_factory=list)
    requests: int = 0

    def create(self, key: str, data: bytes, conditional: bool) -> int:
        """Store an object and return the HTTP status."""
        if conditional and "unsupported" in self.faults:
            return 501
        with self.lock:
            exists = key in self.objects
        if conditional and exists and "racy_preconditions" in self.faults:
            return 412
        if "racy_preconditions" in self.faults:
            time.sleep(0.005)
        with self.lock:
            racy = self.faults & {"racy_preconditions", "no_preconditions"}
            if conditional and not racy and key in self.objects:
                if "late_overwrites" in self.faults:
                    threading.Timer(_LATE_S, self.objects.__setitem__, (key, data)).start()
                return 412
            self._remember()
            self.objects[key] = data.replace(b"\r\n", b"\n") if "changed_content" in self.faults else data
        return 200

    def delete(self, key: str) -> None:
        """Remove an object."""
        with self.lock:
            self._remember()
            if "undead" not in self.faults:
                self.objects.pop(key, None)

    def _remember(self) -> None:
        if self.faults & {"stale_lists", "stale_reads"}:
            self.past = [*self.past[-_BEHIND + 1 :], dict(self.objects)]

    def seen(self, fault: str) -> dict[str, bytes]:
        """Return the objects as a reader sees them."""
        with self.lock:
            return self.past[0] if fault in self.faults and self.past else dict(self.objects)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: without this, each response costs 40 ms
    state: Careless

    def log_message(self, *_: Any) -> None:
        pass

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    @property
    def _query(self) -> dict[str, str]:
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in asked.items()}

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.state.requests += 1
        self.send_response(status)
        for name, value in {"ETag": '"etag"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refused(self) -> bool:
        if "forbidden" not in self.state.faults:
            return False
        self._body()
        text = f"<Code>InvalidAccessKeyId</Code><AWSAccessKeyId>{self.headers.get('Authorization')}</AWSAccessKeyId>"
        self._answer(403, f"<Error>{text}<Message>The key id does not exist</Message></Error>".encode())
        return True

    def do_PUT(self) -> None:
        if self._refused():
            return
        data = self._body()
        if "uploadId" in self._query:  # a part of a large object
            self.state.create(f"{self._key}#{int(self._query['partNumber']):05}", data, False)
            self._answer(200)
            return
        status = self.state.create(self._key, data, self.headers.get("If-None-Match") == "*")
        self._answer(status, b"" if status == 200 else b"<Error><Code>PreconditionFailed</Code></Error>")

    def do_POST(self) -> None:
        if self._refused():
            return
        body = self._body().decode()
        if "delete" in self._query:
            keys = re.findall(r"<Key>(.*?)</Key>", body)
            for key in keys:
                self.state.delete(key)
            done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())
        elif "uploads" in self._query:
            self._answer(200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
        else:
            with self.state.lock:
                parts = sorted(key for key in self.state.objects if key.startswith(f"{self._key}#"))
                self.state.objects[self._key] = b"".join(self.state.objects.pop(part) for part in parts)
            self._answer(200, b'<CompleteMultipartUploadResult><ETag>"etag"</ETag></CompleteMultipartUploadResult>')

    def do_GET(self) -> None:
        if self._refused():
            return
        if self._key == "":
            self._answer(200, self._listing(), Content_Type="application/xml")
            return
        data = self.state.seen("stale_reads").get(self._key)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None or "no_ranges" in self.state.faults:
            self._answer(200, data)
            return
        start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
        off = 1 if "wrong_ranges" in self.state.faults and start else 0
        part = data[start - off : end - off]
        self._answer(206, part, Content_Range=f"bytes {start}-{end - 1}/{len(data)}")

    do_HEAD = do_GET

    def _listing(self) -> bytes:
        prefix = self._query.get("prefix", "")
        after = max(self._query.get("start-after", ""), self._query.get("continuation-token", ""))
        found = self.state.seen("stale_lists")
        keys = sorted(key for key in found if key.startswith(prefix) and key > after)
        page = keys[:_PAGE]
        more = len(keys) > _PAGE and "short_lists" not in self.state.faults
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_WHEN}</LastModified><ETag>etag</ETag>"
            f"<Size>{len(found[key])}</Size></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        text = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        return text.encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that have disconnected."""


@contextlib.contextmanager
def careless(*faults: str) -> Iterator[tuple[Server, Careless]]:
    """Run such a server with some faults; without any, it keeps all promises."""
    state = Careless(frozenset(faults))
    handler = type("Handler", (_Handler,), {"state": state})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{server.server_port}"), state
        finally:
            server.shutdown()
            thread.join()
